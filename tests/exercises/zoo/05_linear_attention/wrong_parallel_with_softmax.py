"""Softmax attention without its scale."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    future = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    return (q @ k.T).masked_fill(future, float("-inf")).softmax(1) @ v
