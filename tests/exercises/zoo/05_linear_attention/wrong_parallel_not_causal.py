"""No mask."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    return q @ k.T @ v
