"""Brings every key to length 1."""
# fails: step-check


# cell: step
def step(state, k, v, beta):
    k = F.normalize(k, dim=0)
    return state + beta * torch.outer(k, v - state.T @ k)


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for t in range(len(q)):
        state = state + beta[t] * torch.outer(k[t], v[t] - state.T @ k[t])
        outputs.append(state.T @ q[t])
    return torch.stack(outputs), state
