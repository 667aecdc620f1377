"""Erases beta times what the key holds, and writes the whole value."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state - beta * torch.outer(k, state.T @ k) + torch.outer(k, v)
