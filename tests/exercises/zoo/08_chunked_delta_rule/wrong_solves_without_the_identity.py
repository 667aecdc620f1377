"""Solves with A, whose diagonal is 0."""
# fails: ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: ut_transform
def ut_transform(k, beta):
    return torch.linalg.solve_triangular(strictly_lower(k, beta), torch.diag(beta), upper=False)
