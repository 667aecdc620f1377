"""Pads with strength 0, transforms all chunks at once, and only the pages go one by one."""


# cell: strictly_lower
def strictly_lower(k, beta):
    overlap = torch.einsum("ik,jk->ij", beta[:, None] * k, k)
    earlier = torch.arange(len(k))[:, None] > torch.arange(len(k))
    return torch.where(earlier, overlap, 0)


# cell: ut_transform
def ut_transform(k, beta):
    """Forward substitution, row after row."""
    C = len(k)
    A = strictly_lower(k, beta)
    rows = []
    for i in range(C):
        row = torch.zeros(C, dtype=k.dtype)
        row[i] = beta[i]
        if i:
            row = row - A[i, :i] @ torch.stack(rows)
        rows.append(row)
    return torch.stack(rows)


# cell: wy
def wy(k, v, beta):
    both = ut_transform(k, beta) @ torch.cat([k, v], dim=1)
    return both[:, : k.shape[1]], both[:, k.shape[1] :]


# cell: chunked
def batched(q, k, v, beta, C, S):
    """q, k [N, T, K], v [N, T, V], beta [N, T], S [N, K, V], for N heads together."""
    N, T, K = k.shape
    missing = -T % C
    q, k, v = (F.pad(x, (0, 0, 0, missing)).unflatten(1, (-1, C)) for x in (q, k, v))
    beta = F.pad(beta, (0, missing)).unflatten(1, (-1, C))
    overlap = k @ k.transpose(-1, -2)
    L = torch.eye(C, dtype=k.dtype) + torch.tril(beta[..., None] * overlap, diagonal=-1)
    solved = torch.linalg.solve_triangular(
        L, beta[..., None] * torch.cat([k, v], dim=-1), upper=False
    )
    W, U = solved.split([K, v.shape[-1]], dim=-1)
    scores = (q @ k.transpose(-1, -2)).tril()
    o = []
    for n in range(k.shape[1]):
        written = U[:, n] - W[:, n] @ S
        o.append(q[:, n] @ S + scores[:, n] @ written)
        S = S + k[:, n].transpose(-1, -2) @ written
    return torch.cat(o, dim=1)[:, :T], S


def chunked(q, k, v, beta, chunk_size, state):
    o, S = batched(*(x[None] for x in (q, k, v, beta)), chunk_size, state[None])
    return o[0], S[0]


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    B, T, H, K = q.shape

    def heads_first(x, y):
        x = torch.stack([x, y], dim=2)  # [B, T, 2, H, ...]
        return x.movedim(3, 1).reshape(B * H, 2 * T, *x.shape[4:])

    o, S = batched(
        heads_first(0 * q, q),
        heads_first(k1, k2),
        heads_first(v1, v2),
        heads_first(b1, b2),
        2 * chunk_size,
        state.flatten(0, 1),
    )
    o = o.reshape(B, H, T, 2, -1)[:, :, :, 1]
    return o.transpose(1, 2), S.reshape(state.shape)
