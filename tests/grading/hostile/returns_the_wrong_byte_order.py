"""Returns the right numbers, their bytes in the other order."""
# fails: double-check

# cell: double
def double(x):
    return (2 * x).numpy().astype(">f4")
