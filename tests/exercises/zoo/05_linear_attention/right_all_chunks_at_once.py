"""Padded, all chunks in one tensor; powers by way of logarithms; outer products summed up."""


# cell: feature_map
def feature_map(x):
    return x.clamp(min=0) + torch.exp(-torch.relu(-x))


# cell: parallel
def parallel(q, k, v):
    t = torch.arange(q.shape[0])
    mask = (t[:, None] >= t[None, :]).to(q.dtype)
    return torch.einsum("tk,sk,ts,sv->tv", q, k, mask, v)


# cell: recurrent
def recurrent(q, k, v, state):
    S = state + (k[:, :, None] * v[:, None, :]).cumsum(dim=0)  # every page, [T, K, V]
    return (q[:, None, :] @ S).squeeze(1), S[-1]


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    T = q.shape[0]
    pad = (0, 0, 0, -T % chunk_size)
    q, k, v = (
        torch.nn.functional.pad(x, pad).reshape(-1, chunk_size, x.shape[1]) for x in (q, k, v)
    )
    pages = torch.cat([state[None], k.mT @ v]).cumsum(dim=0)  # before each chunk, and the last
    o = torch.tril(q @ k.mT) @ v + q @ pages[:-1]
    return o.reshape(-1, v.shape[2])[:T], pages[-1]


# cell: normalised
def normalised(q, k, v):
    q, k = feature_map(q), feature_map(k)
    S = torch.einsum("tk,tv->tkv", k, v).cumsum(dim=0)
    z = k.cumsum(dim=0)
    return torch.einsum("tk,tkv->tv", q, S) / torch.einsum("tk,tk->t", q, z)[:, None]


# cell: decayed_chunked
def decayed_chunked(q, k, v, gamma, chunk_size, state):
    B, T, H, _ = q.shape
    C = min(chunk_size, T)
    N = -(-T // C)

    def cut(x):  # [B, H, N, C, .]
        x = torch.cat([x, x.new_zeros(B, N * C - T, H, x.shape[3])], dim=1)
        return x.reshape(B, N, C, H, -1).permute(0, 3, 1, 2, 4)

    q, k, v = cut(q), cut(k), cut(v)
    g = gamma.log()[:, None]  # [H, 1]
    i = torch.arange(C, dtype=gamma.dtype)
    last = torch.full((N,), C)
    last[-1] = T - (N - 1) * C  # tokens in each chunk
    age = torch.relu(i[:, None] - i)
    decay = torch.tril(torch.exp(g[..., None] * age))
    o = (q @ k.mT * decay[:, None]) @ v
    left = (last[:, None] - 1 - i).clamp(min=0)  # [N, C]
    new = (k * torch.exp(g[..., None] * left)[..., None]).mT @ v  # [B, H, N, K, V]
    over = torch.exp(g * last)  # [H, N]
    pages = [state]
    for n in range(N):
        pages.append(over[:, n, None, None] * pages[-1] + new[:, :, n])
    read = q @ torch.stack(pages[:-1], dim=2)
    o = o + torch.exp(g * (i + 1))[:, None, :, None] * read
    return o.permute(0, 2, 3, 1, 4).reshape(B, N * C, H, -1)[:, :T], pages[-1]
