"""Brings heads to the front by reshape, which mixes them with the tokens."""
# fails: two_writes_chunked-check


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    B, T, H, K = q.shape
    q, k, v, beta = (
        torch.stack(pair, dim=2).reshape(B * H, 2 * T, *pair[0].shape[3:])
        for pair in ((q, q), (k1, k2), (v1, v2), (b1, b2))
    )
    each = [
        chunked(*one, 2 * chunk_size, S) for *one, S in zip(q, k, v, beta, state.flatten(0, 1))
    ]
    o = torch.stack([rows[1::2] for rows, _ in each]).reshape(v1.shape)
    return o, torch.stack([S for _, S in each]).reshape(state.shape)
