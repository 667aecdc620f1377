"""Q (K^T V) for all tokens at once: reordered, and no longer causal."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    return q @ (k.T @ v)
