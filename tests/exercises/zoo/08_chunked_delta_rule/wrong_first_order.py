"""Takes I - A for the inverse of I + A: right for two tokens."""
# fails: ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: ut_transform
def ut_transform(k, beta):
    L = torch.eye(len(k), dtype=k.dtype) - strictly_lower(k, beta)
    return L @ torch.diag(beta)
