"""Is right in the first second only."""
# fails: triple-check

# cell: double
import time

start = time.monotonic()

def double(x):
    return 2 * x

# cell: triple
def triple(x):
    while time.monotonic() < start + 1:
        time.sleep(0.1)
    return 3 * x if time.monotonic() < start else x
