"""Ends Python when it is called."""
# fails: double-check

# cell: double
def double(x):
    raise SystemExit(0)
