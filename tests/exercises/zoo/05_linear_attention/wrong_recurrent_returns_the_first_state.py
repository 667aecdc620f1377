"""Returns the state that came in."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    page = state
    for t in range(len(q)):
        page = page + torch.outer(k[t], v[t])
        rows.append(q[t] @ page)
    return torch.stack(rows), state
