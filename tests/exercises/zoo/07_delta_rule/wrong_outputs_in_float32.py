"""Fills a buffer that always has the default dtype."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    o = torch.zeros(v.shape)
    for t in range(len(q)):
        state = step(state, k[t], v[t], beta[t])
        o[t] = state.T @ q[t]
    return o, state
