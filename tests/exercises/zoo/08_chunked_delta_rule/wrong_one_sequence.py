"""Computes the first sequence and repeats it for the batch."""
# fails: two_writes_chunked-check


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    def head(q, k, v, beta, state):
        return chunked(q, k, v, beta, 2 * chunk_size, state)

    tokens = (
        torch.stack(pair, dim=2).flatten(1, 2)[0]
        for pair in ((q, q), (k1, k2), (v1, v2), (b1, b2))
    )
    heads = torch.vmap(head, in_dims=(1, 1, 1, 1, 0), out_dims=(1, 0))
    o, S = heads(*tokens, state[0])
    return o[1::2].expand(v1.shape), S.expand(state.shape)
