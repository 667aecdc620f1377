"""Multiplies the inverse by Diag(beta) from the left."""
# fails: ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: ut_transform
def ut_transform(k, beta):
    one = torch.eye(len(k), dtype=k.dtype)
    L = one + strictly_lower(k, beta)
    return beta[:, None] * torch.linalg.solve_triangular(L, one, upper=False)
