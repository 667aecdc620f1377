"""Keeps and returns the page as [V, K]."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    state = state.T
    for t in range(len(q)):
        state = state + torch.outer(v[t], k[t])
        rows.append(state @ q[t])
    return torch.stack(rows), state
