"""The page is detached from token to token."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    for t in range(len(q)):
        state = state.detach() + torch.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return torch.stack(rows), state
