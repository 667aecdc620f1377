"""Erases all that the key holds, and writes beta times the value."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state - torch.outer(k, state.T @ k) + beta * torch.outer(k, v)
