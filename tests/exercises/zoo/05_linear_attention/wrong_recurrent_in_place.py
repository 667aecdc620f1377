"""Adds to the state that came in."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    for t in range(len(q)):
        state += torch.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return torch.stack(rows), state
