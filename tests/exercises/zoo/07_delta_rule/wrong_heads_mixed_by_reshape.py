"""Brings heads to the front by reshape, which mixes them with the tokens."""
# fails: two_writes-check


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    B, T, H, K = q.shape
    q, k1, v1, k2, v2 = (x.reshape(B, H, T, -1) for x in (q, k1, v1, k2, v2))
    b1, b2 = (x.reshape(B, H, T, 1) for x in (b1, b2))
    o = []
    for t in range(T):
        for k, v, beta in ((k1, v1, b1), (k2, v2, b2)):
            k_t = k[:, :, t, :, None]
            state = (
                state + k_t * (beta[:, :, t] * (v[:, :, t] - (k_t * state).sum(2)))[:, :, None]
            )
        o.append((q[:, :, t, :, None] * state).sum(2))
    return torch.stack(o, dim=1), state
