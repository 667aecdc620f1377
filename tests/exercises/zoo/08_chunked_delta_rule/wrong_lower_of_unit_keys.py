"""Brings every key to length 1 first."""
# fails: strictly_lower-check, ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: strictly_lower
def strictly_lower(k, beta):
    k = F.normalize(k, dim=-1)
    return (beta[:, None] * (k @ k.T)).tril(-1)
