"""Takes memory until none is left."""
# fails: double-check

# cell: double
def double(x):
    kept = []
    while True:
        kept.append(bytearray(2**25))
