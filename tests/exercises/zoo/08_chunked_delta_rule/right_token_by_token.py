"""Loops over tokens everywhere: right, and slow, which costs hints alone."""


# cell: strictly_lower
def strictly_lower(k, beta):
    A = torch.zeros(len(k), len(k), dtype=k.dtype)
    for i in range(len(k)):
        for j in range(i):
            A[i, j] = beta[i] * torch.dot(k[i], k[j])
    return A


# cell: ut_transform
def ut_transform(k, beta):
    """Column j of T: what is written when token j's value is 1 and all others are 0."""
    C = len(k)
    S, rows = torch.zeros(k.shape[1], C, dtype=k.dtype), []
    for i in range(C):
        value = torch.zeros(C, dtype=k.dtype)
        value[i] = 1
        row = beta[i] * (value - k[i] @ S)
        S = S + torch.outer(k[i], row)
        rows.append(row)
    return torch.stack(rows)


# cell: wy
def wy(k, v, beta):
    W, U = [], []
    for i in range(len(k)):
        w, u = k[i], v[i]
        for j in range(i):
            w = w - (k[i] @ k[j]) * W[j]
            u = u - (k[i] @ k[j]) * U[j]
        W.append(beta[i] * w)
        U.append(beta[i] * u)
    return torch.stack(W), torch.stack(U)


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    o = []
    for t in range(len(q)):
        state = state + beta[t] * torch.outer(k[t], v[t] - state.T @ k[t])
        o.append(state.T @ q[t])
    return torch.stack(o), state


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    o = []
    for t in range(q.shape[1]):
        for k, v, b in ((k1, v1, b1), (k2, v2, b2)):
            held = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
            change = b[:, t].unsqueeze(-1) * (v[:, t] - held)
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
        o.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(o, dim=1), state
