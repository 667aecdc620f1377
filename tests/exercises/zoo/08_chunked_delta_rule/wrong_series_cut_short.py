"""A fixed number of terms of the series: right for chunks of up to four tokens."""
# fails: ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: ut_transform
def ut_transform(k, beta):
    A = strictly_lower(k, beta)
    one = torch.eye(len(k), dtype=k.dtype)
    return (one - A) @ (one + A @ A) * beta
