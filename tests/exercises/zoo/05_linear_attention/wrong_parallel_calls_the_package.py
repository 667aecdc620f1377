"""Linear attention is taken from llmcourse."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    from llmcourse.ops import linear

    x = (y[None, :, None] for y in (q, k, v))
    return linear.parallel(*x, scale=1.0)[0][0, :, 0]
