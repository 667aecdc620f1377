"""Cuts the gradient between one token's page and the next one's."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for q_t, k_t, v_t, beta_t in zip(q, k, v, beta):
        state = step(state, k_t, v_t, beta_t)
        outputs.append(state.T @ q_t)
        state = state.detach()
    return torch.stack(outputs), state
