"""The inverse is the power -1: a general inverse under another name."""
# fails: ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: ut_transform
def ut_transform(k, beta):
    lower = torch.eye(len(k)).to(k) + strictly_lower(k, beta)
    return torch.linalg.matrix_power(lower, -1) * beta
