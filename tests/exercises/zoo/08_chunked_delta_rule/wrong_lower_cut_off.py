"""Products taken without a gradient."""
# fails: strictly_lower-check


# cell: strictly_lower
def strictly_lower(k, beta):
    with torch.no_grad():
        products = k @ k.T
    return (beta[:, None] * products).tril(-1)


# cell: ut_transform
def ut_transform(k, beta):
    A = (beta[:, None] * (k @ k.T)).tril(-1)
    return torch.linalg.solve_triangular(A, torch.diag(beta), upper=False, unitriangular=True)
