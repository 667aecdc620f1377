"""Keeps the diagonal, and solves with I + A as it is."""
# fails: strictly_lower-check, ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: strictly_lower
def strictly_lower(k, beta):
    return (beta[:, None] * (k @ k.T)).tril()


# cell: ut_transform
def ut_transform(k, beta):
    L = torch.eye(len(k), dtype=k.dtype) + strictly_lower(k, beta)
    return torch.linalg.solve_triangular(L, torch.diag(beta), upper=False)
