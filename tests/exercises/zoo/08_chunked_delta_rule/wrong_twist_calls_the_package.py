"""Interleaves, and lets the package do the rest."""
# fails: two_writes_chunked-check


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    q, k, v, beta = (
        torch.stack(pair, dim=2).flatten(1, 2)
        for pair in ((q, q), (k1, k2), (v1, v2), (b1, b2))
    )
    o, state = delta.chunked(
        q, k, v, beta, scale=1.0, initial_state=state, chunk_size=2 * chunk_size
    )
    return o[:, 1::2], state
