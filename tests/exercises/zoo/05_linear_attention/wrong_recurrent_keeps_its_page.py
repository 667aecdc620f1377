"""The page stays where the last call left it."""
# fails: recurrent-check


# cell: recurrent
PAGES = {}


def recurrent(q, k, v, state):
    rows = []
    state = PAGES.get(state.shape, state)
    for t in range(len(q)):
        state = state + torch.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return torch.stack(rows), PAGES.setdefault(state.shape, state.detach())
