"""Writes all tokens into the caller's page."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for t in range(len(q)):
        state += beta[t] * torch.outer(k[t], v[t] - state.T @ k[t])
        outputs.append(state.T @ q[t])
    return torch.stack(outputs), state
