"""Sleeps for a year."""
# fails: double-check

# cell: double
import time

def double(x):
    time.sleep(3e7)
    return 2 * x
