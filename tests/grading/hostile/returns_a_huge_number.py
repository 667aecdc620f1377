"""Returns an integer of a hundred thousand digits."""
# fails: double-check

# cell: double
def double(x):
    return 10**100_000
