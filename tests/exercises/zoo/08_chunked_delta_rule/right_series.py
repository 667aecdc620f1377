"""The inverse as (I - A)(I + A^2)(I + A^4)..., which ends because A is strictly lower."""


# cell: strictly_lower
def strictly_lower(k, beta):
    return torch.tril(torch.diag(beta) @ k @ k.mT, diagonal=-1)


# cell: ut_transform
def ut_transform(k, beta):
    A = strictly_lower(k, beta)
    one = torch.eye(len(k), dtype=k.dtype)
    inverse, power, n = one - A, A @ A, 2
    while n < len(k):
        inverse = inverse @ (one + power)
        power, n = power @ power, 2 * n
    return inverse * beta


# cell: wy
def wy(k, v, beta):
    T = ut_transform(k, beta)
    return torch.einsum("ij,jk->ik", T, k), torch.einsum("ij,jv->iv", T, v)


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    """The first chunk, and then the same for what is left."""
    C = chunk_size
    W, U = wy(k[:C], v[:C], beta[:C])
    new = U - W.matmul(state)
    mask = torch.ones(len(new), len(new), dtype=torch.bool).tril()
    scores = torch.where(mask, q[:C] @ k[:C].T, torch.zeros((), dtype=q.dtype))
    o = torch.addmm(scores @ new, q[:C], state)
    page = torch.addmm(state, k[:C].T, new)
    if len(q) <= C:
        return o, page
    rest, page = chunked(q[C:], k[C:], v[C:], beta[C:], C, page)
    return torch.cat([o, rest]), page


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    """Both writes of a chunk kept apart: masks say which of them see which."""
    q, k1, v1, k2, v2 = (x.transpose(1, 2) for x in (q, k1, v1, k2, v2))  # [B, H, T, .]
    b1, b2 = (x.transpose(1, 2).unsqueeze(-1) for x in (b1, b2))
    outputs = []
    for Q, A, X, a, B, Y, b in zip(
        *(x.split(chunk_size, dim=2) for x in (q, k1, v1, b1, k2, v2, b2))
    ):
        C = Q.shape[2]
        # Row 2 t is token t's first write, row 2 t + 1 its second: put there by index.
        first, second = 2 * torch.arange(C), 2 * torch.arange(C) + 1
        order = torch.cat([first, second]).argsort()
        k = torch.cat([A, B], dim=2)[:, :, order]
        v = torch.cat([X, Y], dim=2)[:, :, order]
        beta = torch.cat([a, b], dim=2)[:, :, order]
        L = (beta * (k @ k.mT)).tril(-1)
        right = beta * (v - k @ state)
        new = torch.linalg.solve_triangular(L, right, upper=False, unitriangular=True)
        seen = torch.arange(2 * C)[None, :] <= second[:, None]
        outputs.append(Q @ state + (Q @ k.mT * seen) @ new)
        state = state + k.mT @ new
    return torch.cat(outputs, dim=2).transpose(1, 2), state
