"""Each token reads the page before it is written."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    for t in range(len(q)):
        rows.append(q[t] @ state)
        state = state + torch.outer(k[t], v[t])
    return torch.stack(rows), state
