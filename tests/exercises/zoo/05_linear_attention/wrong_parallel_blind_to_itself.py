"""The mask leaves out the diagonal."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    return (q @ k.T).tril(-1) @ v
