"""Takes beta out of its tensor: no gradient reaches it."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state + beta.item() * torch.outer(k, v - state.T @ k)
