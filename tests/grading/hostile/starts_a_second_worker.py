"""Forks, so that two processes answer the examiner."""
# fails: double-check, triple-check

# cell: double
import os

def double(x):
    os.fork()
    return 2 * x
