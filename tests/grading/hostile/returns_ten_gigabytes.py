"""Fills ten gigabytes and returns them."""
# fails: double-check

# cell: double
def double(x):
    return torch.ones(10 * 2**30, dtype=torch.uint8)
