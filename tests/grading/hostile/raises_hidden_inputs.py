"""Raises, prints and warns with what it is called with."""
# fails: double-check

# cell: double
import sys
import warnings

def double(x):
    print("SEEN", x.tolist())
    print("SEEN", x.tolist(), file=sys.stderr)
    warnings.warn(f"SEEN {x.tolist()}")
    if len(x) > 1:
        raise ValueError(f"SEEN {x.tolist()}")
    return 2 * x
