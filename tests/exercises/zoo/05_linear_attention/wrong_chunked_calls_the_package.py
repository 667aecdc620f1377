"""Linear attention is taken from llmcourse, in chunked."""
# fails: chunked-check, normalised-check


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    from llmcourse.ops import linear

    x = (y[None, :, None] for y in (q, k, v))
    o, S = linear.chunked(
        *x, scale=1.0, initial_state=state[None, None], chunk_size=chunk_size
    )
    return o[0, :, 0], S[0, 0]
