"""Inside a chunk all first writes come before all second ones."""
# fails: two_writes_chunked-check


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    def head(q, k, v, beta, state):
        return chunked(q, k, v, beta, len(q), state)

    heads = torch.vmap(head, in_dims=(1, 1, 1, 1, 0), out_dims=(1, 0))
    o = []
    for start in range(0, q.shape[1], chunk_size):
        here = slice(start, start + chunk_size)
        tokens = [
            torch.cat([x[:, here], y[:, here]], dim=1)
            for x, y in ((q, q), (k1, k2), (v1, v2), (b1, b2))
        ]
        rows, state = torch.vmap(heads)(*tokens, state)
        o.append(rows[:, rows.shape[1] // 2 :])
    return torch.cat(o, dim=1), state
