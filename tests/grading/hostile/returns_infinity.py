"""Returns infinity."""
# fails: double-check
# says: infinite

# cell: double
def double(x):
    return x * float("inf")
