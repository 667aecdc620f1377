"""Returns NaN, which is neither larger nor smaller than anything."""
# fails: double-check
# says: NaN

# cell: double
def double(x):
    return x * float("nan")
