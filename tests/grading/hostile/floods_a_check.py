"""Prints without end when it is called."""
# fails: double-check

# cell: double
def double(x):
    while True:
        print("flood " * 2000)
