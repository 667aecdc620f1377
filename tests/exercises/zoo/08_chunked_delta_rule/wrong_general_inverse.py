"""Calls a general inverse, which the problem excludes."""
# fails: ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: ut_transform
def ut_transform(k, beta):
    L = torch.eye(len(k), dtype=k.dtype) + strictly_lower(k, beta)
    return torch.linalg.inv(L) * beta
