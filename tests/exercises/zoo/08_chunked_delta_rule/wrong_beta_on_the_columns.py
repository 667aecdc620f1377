"""A_ij has the strength of token j, which wrote, not of token i, which reads."""
# fails: strictly_lower-check, ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: strictly_lower
def strictly_lower(k, beta):
    return (beta * (k @ k.T)).tril(-1)
