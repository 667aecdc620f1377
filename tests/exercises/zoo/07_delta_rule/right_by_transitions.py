"""Every write as a matrix: the old page times the transition, plus beta k v^T."""


# cell: step
def step(state, k, v, beta):
    M = torch.eye(len(k), dtype=k.dtype) - beta * torch.ger(k, k)
    return M @ state + beta * k[:, None] * v[None, :]


# cell: recurrent
def recurrent(q, k, v, beta, state):
    T, V = v.shape
    o = torch.zeros(T, V, dtype=v.dtype)
    for t in range(T):
        M = torch.eye(k.shape[1], dtype=k.dtype) - beta[t] * k[t][:, None] @ k[t][None, :]
        state = M @ state + beta[t] * torch.ger(k[t], v[t])
        o[t] = q[t] @ state
    return o, state


# cell: transition
def transition(k, beta):
    M = -beta * torch.einsum("i,j->ij", k, k)
    M.diagonal().add_(1)
    return M


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    return torch.ger(k, k) @ state - torch.ger(k, v)


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    eye = torch.eye(q.shape[-1], dtype=q.dtype)
    b1, b2 = b1[..., None, None], b2[..., None, None]
    M1 = eye - b1 * k1[..., :, None] * k1[..., None, :]
    M2 = eye - b2 * k2[..., :, None] * k2[..., None, :]
    M = M2 @ M1  # [B, T, H, K, K]
    added = M2 @ (b1 * k1[..., :, None] * v1[..., None, :])
    added = added + b2 * k2[..., :, None] * v2[..., None, :]
    o = []
    for t in range(q.shape[1]):
        state = M[:, t] @ state + added[:, t]
        o.append((q[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(o, 1), state
