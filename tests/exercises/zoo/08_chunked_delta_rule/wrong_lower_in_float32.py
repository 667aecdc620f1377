"""Fills a matrix of the default dtype."""
# fails: strictly_lower-check


# cell: strictly_lower
def strictly_lower(k, beta):
    A = torch.zeros(len(k), len(k))
    for i in range(1, len(k)):
        A[i, :i] = beta[i] * k[:i] @ k[i]
    return A


# cell: ut_transform
def ut_transform(k, beta):
    A = (beta[:, None] * (k @ k.T)).tril(-1)
    return torch.linalg.solve_triangular(A, torch.diag(beta), upper=False, unitriangular=True)
