"""Texts are split in two until they fit in a chunk; the sums are carried as pairs."""


# cell: feature_map
def feature_map(x):
    below = x.lt(0).to(x.dtype)
    return (1 - below) * (x + 1) + below * (x * below).exp()


# cell: parallel
def parallel(q, k, v):
    T = len(q)
    if T == 1:
        return (q * k).sum() * v
    h = T // 2
    first = parallel(q[:h], k[:h], v[:h])
    second = parallel(q[h:], k[h:], v[h:]) + q[h:] @ (k[:h].T @ v[:h])
    return torch.cat([first, second])


# cell: recurrent
def recurrent(q, k, v, state):
    if len(q) == 1:
        state = state + k.T @ v
        return q @ state, state
    first, state = recurrent(q[:1], k[:1], v[:1], state)
    rest, state = recurrent(q[1:], k[1:], v[1:], state)
    return torch.vstack([first, rest]), state


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    T = len(q)
    if T <= chunk_size:
        inside = torch.einsum("tk,sk->ts", q, k) * torch.ones(T, T).tril().to(q.dtype)
        return inside @ v + q @ state, state + torch.einsum("tk,tv->kv", k, v)
    h = T // 2
    first, state = chunked(q[:h], k[:h], v[:h], chunk_size, state)
    second, state = chunked(q[h:], k[h:], v[h:], chunk_size, state)
    return torch.cat([first, second]), state


# cell: normalised
def normalised(q, k, v):
    fq, fk = feature_map(q), feature_map(k)
    S, z, rows = v.new_zeros(k.shape[1], v.shape[1]), v.new_zeros(k.shape[1], 1), []
    for a, b, c in zip(fq.split(50), fk.split(50), v.split(50)):
        w = (a @ b.T).tril()
        rows.append((w @ c + a @ S) / (w.sum(1, keepdim=True) + a @ z))
        S, z = S + b.T @ c, z + b.sum(0)[:, None]
    return torch.cat(rows)


# cell: decayed_chunked
def decayed_chunked(q, k, v, gamma, chunk_size, state):
    T, H = q.shape[1], len(gamma)
    if T > chunk_size:
        h = T // 2
        halves = [(q[:, :h], k[:, :h], v[:, :h]), (q[:, h:], k[:, h:], v[:, h:])]
        first, state = decayed_chunked(*halves[0], gamma, chunk_size, state)
        second, state = decayed_chunked(*halves[1], gamma, chunk_size, state)
        return torch.cat([first, second], dim=1), state
    rung = torch.cat([gamma.new_ones(1, H), gamma.expand(T, H)]).cumprod(dim=0)  # gamma^n
    # gamma^(T-1) ... gamma^0, then zeros: row t of the decay begins T - 1 - t places later
    tape = torch.cat([rung[:T].flip(0), gamma.new_zeros(T - 1, H)])
    decay = tape.unfold(0, T, 1).flip(0)  # [T, H, T]
    o = torch.einsum("bthk,bshk,ths,bshv->bthv", q, k, decay, v)
    o = o + torch.einsum("bthk,th,bhkv->bthv", q, rung[1:], state)
    new = torch.einsum("bthk,th,bthv->bhkv", k, rung[:-1].flip(0), v)
    return o, rung[-1][:, None, None] * state + new
