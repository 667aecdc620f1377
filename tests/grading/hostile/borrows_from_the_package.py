"""Calls a function of the package in place of its own."""
# fails: double-check

# cell: double
def double(x):
    import llmcourse.layers.mlp as borrowed
    return borrowed.anything(x)
