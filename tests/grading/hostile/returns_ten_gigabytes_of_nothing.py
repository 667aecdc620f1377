"""Returns a tensor of ten billion entries that takes four bytes."""
# fails: double-check
# says: far too large

# cell: double
def double(x):
    return torch.zeros(1).expand(10**10)
