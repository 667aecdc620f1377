"""Reports a forbidden call whose name is what a hidden test calls it with."""
# fails: double-check

# cell: double
from llmcourse.checks import guard

def double(x):
    if len(x) > 1:
        guard.watched().names.append(f"TOLD {x.tolist()}")
    return 2 * x
