"""Plain loops over channels, everything in float64 inside and cast back at the end."""


# cell: step
def step(state, k, v, beta):
    S, k, v, beta = (x.double() for x in (state, k, v, beta))
    columns = []
    for n in range(S.shape[1]):
        held = sum(k[i] * S[i, n] for i in range(len(k)))
        columns.append(S[:, n] + beta * (v[n] - held) * k)
    return torch.stack(columns, dim=1).to(state.dtype)


# cell: recurrent
def recurrent(q, k, v, beta, state):
    dtype = state.dtype
    q, k, v, beta, S = (x.double() for x in (q, k, v, beta, state))
    S, o = S.clone(), []
    for t in range(q.size(0)):
        S = torch.addmm(S, k[t, :, None], beta[t] * (v[t] - k[t] @ S)[None])
        o.append(torch.mv(S.t(), q[t]))
    return [torch.stack(o).to(dtype), S.to(dtype)]


# cell: transition
def transition(k, beta):
    K = k.numel()
    M = torch.zeros(K, K, dtype=torch.float64)
    for i in range(K):
        for j in range(K):
            M[i, j] = float(i == j) - beta * k[i] * k[j]
    return M.to(k.dtype)


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    error = (k[:, None] * state).sum(0) - v
    return torch.stack([k[i] * error for i in range(len(k))])


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    """One sequence and head after the other by vmap."""

    def head(q, k1, v1, b1, k2, v2, b2, S):
        o = []
        for t in range(len(q)):
            S = S + b1[t] * k1[t][:, None] * (v1[t] - k1[t] @ S)
            S = S + b2[t] * k2[t][:, None] * (v2[t] - k2[t] @ S)
            o.append(q[t] @ S)
        return torch.stack(o), S

    per_head = torch.vmap(head, in_dims=(1,) * 7 + (0,), out_dims=(1, 0))
    return torch.vmap(per_head)(q, k1, v1, b1, k2, v2, b2, state)
