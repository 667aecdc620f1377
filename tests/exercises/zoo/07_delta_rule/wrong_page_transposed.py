"""Reads the page with S k instead of S^T k: right for K = V and a symmetric page alone."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    return state + beta * torch.outer(k, v - state @ k)
