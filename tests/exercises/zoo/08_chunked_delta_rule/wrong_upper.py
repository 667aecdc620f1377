"""Keeps what stands above the diagonal."""
# fails: strictly_lower-check, ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: strictly_lower
def strictly_lower(k, beta):
    return (beta[:, None] * (k @ k.T)).triu(1)
