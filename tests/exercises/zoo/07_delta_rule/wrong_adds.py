"""Adds beta k v^T without reading what the key holds."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state + beta * torch.outer(k, v)
