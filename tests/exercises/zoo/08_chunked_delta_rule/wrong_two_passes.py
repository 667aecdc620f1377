"""All tokens in chunks with the first writes, then again with the second ones."""
# fails: two_writes_chunked-check


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    def head(q, k, v, beta, state):
        return chunked(q, k, v, beta, chunk_size, state)

    heads = torch.vmap(torch.vmap(head, in_dims=(1, 1, 1, 1, 0), out_dims=(1, 0)))
    _, state = heads(q, k1, v1, b1, state)
    return heads(q, k2, v2, b2, state)
