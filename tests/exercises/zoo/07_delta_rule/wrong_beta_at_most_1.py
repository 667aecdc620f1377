"""Takes a strength above 1 for 1."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state + beta.clamp(0, 1) * torch.outer(k, v - state.T @ k)
