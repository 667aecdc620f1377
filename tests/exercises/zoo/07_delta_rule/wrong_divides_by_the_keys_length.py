"""Divides the write by k @ k, which makes every key a unit key."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state + beta * torch.outer(k, v - state.T @ k) / (k @ k)
