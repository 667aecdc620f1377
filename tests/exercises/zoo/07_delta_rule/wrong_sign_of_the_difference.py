"""Writes held minus v: away from the value."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state + beta * torch.outer(k, state.T @ k - v)
