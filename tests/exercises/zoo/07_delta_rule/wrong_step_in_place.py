"""Adds to the caller's page in place."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    state += beta * torch.outer(k, v - state.T @ k)
    return state
