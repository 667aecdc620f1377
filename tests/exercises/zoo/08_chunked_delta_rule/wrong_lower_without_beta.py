"""Leaves the strengths to the transform, which does not expect it."""
# fails: strictly_lower-check, ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: strictly_lower
def strictly_lower(k, beta):
    return (k @ k.T).tril(-1)
