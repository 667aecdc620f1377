"""Moves the last chunk back so that it is full: its first tokens write twice."""
# fails: chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    o = torch.zeros_like(v)
    for start in range(0, len(q), chunk_size):
        start = max(0, min(start, len(q) - chunk_size))
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        o[start : start + chunk_size] = Q @ state + (Q @ K.T).tril() @ written
        state = state + K.T @ written
    return o, state


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    q, k, v, beta = (
        torch.stack(pair, dim=2).flatten(1, 2).transpose(1, 2)
        for pair in ((q, q), (k1, k2), (v1, v2), (b1, b2))
    )
    L = (beta[..., None] * (k @ k.mT)).tril(-1)
    right = beta[..., None] * (v - k @ state)
    written = torch.linalg.solve_triangular(L, right, upper=False, unitriangular=True)
    o = q @ state + (q @ k.mT).tril() @ written
    return o[:, :, 1::2].transpose(1, 2), state + k.mT @ written
