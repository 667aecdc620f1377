"""Sequence by sequence, head by head; powers by multiplying; float64 inside; entries by index."""


# cell: feature_map
def feature_map(x):
    y = torch.empty_like(x)
    above = x > 0
    y[above] = x[above] + 1
    y[~above] = torch.exp(x[~above])
    return y


# cell: parallel
def parallel(q, k, v):
    rows = []
    for t in range(len(q)):
        rows.append(torch.mv(v[: t + 1].T, torch.mv(k[: t + 1], q[t])))
    return torch.stack(rows)


# cell: recurrent
def recurrent(q, k, v, state):
    S = state.clone()
    o = []
    for t in range(q.shape[0]):
        S = torch.addr(S, k[t], v[t])
        o.append(torch.mv(S.T, q[t])[None])
    return torch.cat(o, dim=0), S


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    o = []
    start = 0
    while start < q.shape[0]:
        end = min(start + chunk_size, q.shape[0])
        Q, K, V = q[start:end], k[start:end], v[start:end]
        scores = torch.matmul(Q, K.T)
        scores[tuple(torch.triu_indices(len(Q), len(Q), 1))] = 0
        o += [torch.addmm(torch.matmul(Q, state), scores, V)]
        state = torch.addmm(state, K.T, V)
        start = end
    return torch.cat(o, dim=0), state


# cell: normalised
def normalised(q, k, v):
    fq, fk = feature_map(q), feature_map(k)
    o, _ = recurrent(fq, fk, v, torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype))
    one = torch.ones(v.shape[0], 1, dtype=v.dtype)
    w, _ = recurrent(fq, fk, one, torch.zeros(k.shape[1], 1, dtype=v.dtype))
    return o / w


# cell: decayed_chunked
def powers(g, n):
    """g^0 to g^n, [n + 1]."""
    ladder = [torch.ones_like(g)]
    for _ in range(n):
        ladder.append(ladder[-1] * g)
    return torch.stack(ladder)


def one_head(q, k, v, g, chunk_size, S):
    rows = []
    p = powers(g, min(chunk_size, len(q)))
    for start in range(0, len(q), chunk_size):
        Q, K, V = (x[start : start + chunk_size] for x in (q, k, v))
        n = len(Q)
        t = torch.arange(n)
        decay = p[(t[:, None] - t).abs()].tril()
        rows.append((Q @ K.T * decay) @ V + p[1 : n + 1, None] * (Q @ S))
        S = p[n] * S + (p[:n].flip(0)[:, None] * K).T @ V
    return torch.cat(rows), S


def decayed_chunked(q, k, v, gamma, chunk_size, state):
    dtype = q.dtype
    q, k, v, gamma, state = (x.double() for x in (q, k, v, gamma, state))
    o, S = [], []
    for b in range(q.shape[0]):
        heads = [
            one_head(q[b, :, h], k[b, :, h], v[b, :, h], gamma[h], chunk_size, state[b, h])
            for h in range(q.shape[2])
        ]
        o.append(torch.stack([x for x, _ in heads], dim=1))
        S.append(torch.stack([x for _, x in heads]))
    return torch.stack(o).to(dtype), torch.stack(S).to(dtype)
