"""The formulas of the problem, line by line; a column of ones for the normaliser."""


# cell: feature_map
def feature_map(x):
    small = torch.minimum(x, torch.zeros_like(x))
    return torch.where(x > 0, x + 1, torch.exp(small))


# cell: parallel
def parallel(q, k, v):
    scores = q @ k.transpose(0, 1)
    future = torch.triu(torch.ones_like(scores), diagonal=1).bool()
    return scores.masked_fill(future, 0) @ v


# cell: recurrent
def recurrent(q, k, v, state):
    o = q.new_zeros(q.shape[0], v.shape[1])
    for t in range(q.shape[0]):
        state = state + k[t].unsqueeze(1) * v[t].unsqueeze(0)
        o[t] = state.T @ q[t]
    return o, state


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    T = q.shape[0]
    o = torch.zeros(T, v.shape[1], dtype=v.dtype)
    for a in range(0, T, chunk_size):
        b = min(a + chunk_size, T)
        o[a:b] = parallel(q[a:b], k[a:b], v[a:b]) + q[a:b] @ state
        state = state + k[a:b].T @ v[a:b]
    return o, state


# cell: normalised
def normalised(q, k, v):
    T, V = v.shape
    v1 = torch.cat((v, torch.ones(T, 1, dtype=v.dtype)), dim=1)
    zeros = torch.zeros(q.shape[1], V + 1, dtype=v.dtype)
    both, _ = chunked(feature_map(q), feature_map(k), v1, 32, zeros)
    return both[:, :V] / both[:, V:]


# cell: decayed_chunked
def decayed_chunked(q, k, v, gamma, chunk_size, state):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [B, H, T, .]
    T = q.shape[2]
    pieces = []
    for a in range(0, T, chunk_size):
        Q, K, V = (x[:, :, a : a + chunk_size] for x in (q, k, v))
        n = Q.shape[2]
        steps = torch.arange(n)
        ages = steps[:, None] - steps[None, :]
        seen = ages >= 0
        decay = gamma.view(-1, 1, 1).pow(torch.where(seen, ages, 0)) * seen
        started = gamma.view(-1, 1, 1).pow(steps.view(n, 1) + 1)
        ending = gamma.view(-1, 1, 1).pow(n - 1 - steps.view(n, 1))
        pieces.append(((Q @ K.transpose(2, 3)) * decay) @ V + (Q * started) @ state)
        state = gamma.view(-1, 1, 1) ** n * state + (K * ending).transpose(2, 3) @ V
    return torch.cat(pieces, dim=2).transpose(1, 2), state
