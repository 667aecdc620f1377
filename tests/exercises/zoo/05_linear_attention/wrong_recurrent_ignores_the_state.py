"""Starts from an empty page."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    state = torch.zeros_like(state)
    for t in range(len(q)):
        state = state + torch.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return torch.stack(rows), state
