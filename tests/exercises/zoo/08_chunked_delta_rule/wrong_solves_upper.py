"""Tells the solver that the matrix is upper triangular."""
# fails: ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: ut_transform
def ut_transform(k, beta):
    L = torch.eye(len(k), dtype=k.dtype) + strictly_lower(k, beta)
    return torch.linalg.solve_triangular(L, torch.diag(beta), upper=True)
