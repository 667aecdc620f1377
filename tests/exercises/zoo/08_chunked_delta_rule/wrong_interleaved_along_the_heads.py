"""Stacks the two writes behind the heads and flattens those: heads and writes mixed."""
# fails: two_writes_chunked-check


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    def head(q, k, v, beta, state):
        return chunked(q, k, v, beta, 2 * chunk_size, state)

    B, T, H, K = q.shape
    q, k, v, beta = (
        torch.stack(pair, dim=3).reshape(B, 2 * T, H, *pair[0].shape[3:])
        for pair in ((q, q), (k1, k2), (v1, v2), (b1, b2))
    )
    heads = torch.vmap(head, in_dims=(1, 1, 1, 1, 0), out_dims=(1, 0))
    o, state = torch.vmap(heads)(q, k, v, beta, state)
    return o[:, 1::2], state
