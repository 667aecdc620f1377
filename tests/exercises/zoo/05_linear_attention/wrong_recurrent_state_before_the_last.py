"""Returns the state before the last token."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    before = state
    for t in range(len(q)):
        before, state = state, state + torch.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return torch.stack(rows), before
