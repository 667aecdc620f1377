"""Leaves the twist out."""
# fails: parallel_block-check

# cell: parallel_block
def parallel_block(x, params, num_heads):
    raise NotImplementedError()
