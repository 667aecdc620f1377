"""Calls the package's delta rule."""
# fails: recurrent-check, two_writes-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    return package_recurrent(q, k, v, beta, state)


# cell: two_writes
def two_writes(q, k1, v1, b1, k2, v2, b2, state):
    def in_turn(x, y):
        return torch.stack([x, y], dim=2).flatten(1, 2)

    o, state = delta.recurrent(
        in_turn(q, q),
        in_turn(k1, k2),
        in_turn(v1, v2),
        in_turn(b1, b2),
        scale=1.0,
        initial_state=state,
    )
    return o[:, 1::2], state
