"""A query's mask ends at its token's first write."""
# fails: two_writes_chunked-check


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    def by_pairs(x, y):
        return torch.stack([x, y], dim=2).flatten(1, 2).transpose(1, 2)

    q = q.transpose(1, 2)
    k, v, beta = by_pairs(k1, k2), by_pairs(v1, v2), by_pairs(b1, b2)[..., None]
    L = (beta * (k @ k.mT)).tril(-1)
    written = torch.linalg.solve_triangular(
        L, beta * (v - k @ state), upper=False, unitriangular=True
    )
    seen = 2 * torch.arange(q.shape[2])[:, None] >= torch.arange(k.shape[2])
    o = q @ state + (q @ k.mT * seen) @ written
    return o.transpose(1, 2), state + k.mT @ written
