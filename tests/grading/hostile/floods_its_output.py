"""Prints without end when the cell runs."""
# fails:

# cell: double
def double(x):
    return 2 * x

for _ in range(2000):
    print("flood " * 2000)
