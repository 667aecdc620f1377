"""Is right only after its own cell has failed, which stops no notebook."""
# fails:

# cell: double
def double(x):
    return factor * x

factor = 2
raise RuntimeError("stop here")
factor = 3
