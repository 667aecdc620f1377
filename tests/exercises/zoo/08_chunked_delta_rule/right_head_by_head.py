"""One solve for keys and values together, head by head, every second row of what is written."""


# cell: strictly_lower
def strictly_lower(k, beta):
    A = k @ k.t() * beta.unsqueeze(1)
    return A - A.triu()


# cell: ut_transform
def ut_transform(k, beta):
    C = k.size(0)
    upper = torch.eye(C, dtype=k.dtype) + strictly_lower(k, beta).T
    # X L = Diag(beta) solved from the right, with the transpose of everything.
    return torch.linalg.solve_triangular(
        upper, torch.diag_embed(beta), upper=True, left=False
    ).T


# cell: wy
def wy(k, v, beta):
    L = torch.eye(len(k), dtype=k.dtype) + strictly_lower(k, beta)
    right = beta[:, None] * torch.hstack([k, v])
    solved = torch.linalg.solve_triangular(L, right, upper=False)
    return [solved[:, : k.shape[1]], solved[:, k.shape[1] :]]


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    o = torch.empty(v.shape, dtype=v.dtype)
    for i in range((len(q) + chunk_size - 1) // chunk_size):
        here = slice(i * chunk_size, (i + 1) * chunk_size)
        W, U = wy(k[here], v[here], beta[here])
        new = U - W @ state
        o[here] = q[here] @ state + torch.tril(q[here] @ k[here].T) @ new
        state = state + torch.einsum("ck,cv->kv", k[here], new)
    return o, state


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    B, T, H, K = q.shape
    k = torch.empty(B, 2 * T, H, K, dtype=q.dtype)
    v = torch.empty(B, 2 * T, H, v1.shape[-1], dtype=q.dtype)
    beta = torch.empty(B, 2 * T, H, dtype=q.dtype)
    k[:, 0::2], k[:, 1::2] = k1, k2
    v[:, 0::2], v[:, 1::2] = v1, v2
    beta[:, 0::2], beta[:, 1::2] = b1, b2
    q = q.repeat_interleave(2, dim=1)
    o, pages = torch.empty_like(v1), torch.empty_like(state)
    for b in range(B):
        for h in range(H):
            tokens = (x[b, :, h] for x in (q, k, v, beta))
            rows, pages[b, h] = chunked(*tokens, 2 * chunk_size, state[b, h])
            o[b, :, h] = rows[1::2]
    return o, pages
