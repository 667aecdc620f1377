"""Returns a generator without an end."""
# fails: double-check
# says: returned

# cell: double
def double(x):
    while True:
        yield 2 * x
