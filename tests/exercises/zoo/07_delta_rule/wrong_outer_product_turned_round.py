"""Keeps the page as [V, K] and turns it back at the end: the write goes to the wrong side."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    page = state.reshape(state.shape[1], state.shape[0])
    return (page + beta * torch.outer(v - page @ k, k)).reshape(state.shape)
