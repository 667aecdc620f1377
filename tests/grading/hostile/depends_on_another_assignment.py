"""Imports the answers of another assignment."""
# fails: double-check

# cell: double
import sys

sys.path += ["..", "../02_gpt2", "/exercises", "/course/solutions", "/solutions"]

def double(x):
    import gpt2
    return gpt2.double(x)
