"""Solves with Diag(1 / beta) + tril(K K^T, -1), where a strength of 0 has no inverse."""
# fails: ut_transform-check


# cell: ut_transform
def ut_transform(k, beta):
    L = torch.diag(1 / beta) + (k @ k.T).tril(-1)
    return torch.linalg.solve_triangular(L, torch.eye(len(k), dtype=k.dtype), upper=False)


# cell: wy
def wy(k, v, beta):
    L = strictly_lower(k, beta)
    right = beta[:, None] * torch.cat([k, v], dim=1)
    solved = torch.linalg.solve_triangular(L, right, upper=False, unitriangular=True)
    return solved.split([k.shape[1], v.shape[1]], dim=1)
