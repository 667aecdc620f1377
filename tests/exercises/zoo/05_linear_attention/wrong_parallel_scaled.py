"""Scores are divided by sqrt(K)."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    return (q @ k.T / k.shape[1] ** 0.5).tril() @ v
