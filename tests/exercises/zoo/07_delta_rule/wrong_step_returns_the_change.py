"""Returns what is added to the page, not the page."""
# fails: step-check


# cell: step
def step(state, k, v, beta):
    return beta * torch.outer(k, v - state.T @ k)


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for t in range(len(q)):
        state = state + step(state, k[t], v[t], beta[t])
        outputs.append(state.T @ q[t])
    return torch.stack(outputs), state
