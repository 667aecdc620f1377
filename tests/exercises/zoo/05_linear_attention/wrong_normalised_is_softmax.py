"""Softmax attention."""
# fails: normalised-check


# cell: normalised
def normalised(q, k, v):
    future = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    return (q @ k.T).masked_fill(future, float("-inf")).softmax(1) @ v
