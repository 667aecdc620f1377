"""The second write's value corrected for what the first changes, then both added at once."""


# cell: step
def step(state, k, v, beta):
    error = v - torch.einsum("k,kv->v", k, state)
    return torch.einsum("k,v->kv", beta * k, error) + state


# cell: recurrent
def recurrent(q, k, v, beta, state):
    """The same one row at a time by going back to the first page: all that was written."""
    written, o = [], []
    for t in range(len(q)):
        held = k[t] @ state + sum((k[t] @ k[i]) * written[i] for i in range(t))
        written.append(beta[t] * (v[t] - held))
        o.append(q[t] @ state + sum((q[t] @ k[i]) * written[i] for i in range(t + 1)))
    return torch.stack(o), state + k.T @ torch.stack(written)


# cell: transition
def transition(k, beta):
    return torch.diag(torch.ones_like(k)) - beta * k * k[:, None]


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    return -(v - state.mT @ k) * k.unsqueeze(-1)


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    S, o = state.clone(), torch.empty_like(v1)
    for t in range(q.size(1)):
        a, b = k1[:, t], k2[:, t]
        d1 = b1[:, t].unsqueeze(-1) * (v1[:, t] - torch.einsum("bhk,bhkv->bhv", a, S))
        held = torch.einsum("bhk,bhkv->bhv", b, S) + (a * b).sum(-1, keepdim=True) * d1
        d2 = b2[:, t].unsqueeze(-1) * (v2[:, t] - held)
        S = S + a.unsqueeze(-1) * d1.unsqueeze(-2) + b.unsqueeze(-1) * d2.unsqueeze(-2)
        o[:, t] = (q[:, t].unsqueeze(-1) * S).sum(-2)
    return o, S
