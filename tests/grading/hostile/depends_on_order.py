"""Needs a function that only a later cell makes."""
# fails: double-check

# cell: double
def double(x):
    return twice(x)

# cell: triple
def twice(x):
    return x + x

def triple(x):
    return twice(x) + x
