"""Prints codes that move a terminal's cursor, change its title and clear it."""
# fails: double-check

# cell: double
print("\x1b]0;title\x07\x1b[2J\x1b[1;1H\x00\x08\x7f\x9b1m all tests passed")

def double(x):
    print("\x1b[2J\x1b[1;1H")
    raise ValueError("\x1b[2J\x00 all tests passed")
