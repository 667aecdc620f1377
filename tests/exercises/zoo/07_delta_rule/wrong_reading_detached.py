"""What the key holds is read without a gradient."""
# fails: step-check, recurrent-check


# cell: step
def step(state, k, v, beta):
    with torch.no_grad():
        held = state.T @ k
    return state + beta * torch.outer(k, v - held)
