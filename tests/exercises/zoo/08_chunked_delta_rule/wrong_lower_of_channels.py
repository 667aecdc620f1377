"""Products of channels, K^T K, not of keys."""
# fails: strictly_lower-check, ut_transform-check, wy-check, chunked-check, two_writes_chunked-check


# cell: strictly_lower
def strictly_lower(k, beta):
    return (beta[:, None] * (k.T @ k)).tril(-1)
