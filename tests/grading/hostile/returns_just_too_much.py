"""Returns a tensor that it can just make, and that is too large to send."""
# fails: double-check

# cell: double
def double(x):
    return torch.zeros(2**26, dtype=torch.float64)
