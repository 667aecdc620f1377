"""Keeps what it is called with, and prints it in a later cell."""
# fails:
# stock: shows

# cell: double
seen = []

def double(x):
    seen.append(x.clone())
    return 2 * x

# cell: triple
print("SEEN", [t.tolist() for t in seen])

def triple(x):
    return 3 * x
