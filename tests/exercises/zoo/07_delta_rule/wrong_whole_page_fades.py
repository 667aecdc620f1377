"""Fades all of the page by 1 - beta, not what stands under the key alone."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return (1 - beta) * state + beta * torch.outer(k, v)
