"""Ignores the page that is given."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    state, outputs = torch.zeros_like(state), []
    for q_t, k_t, v_t, beta_t in zip(q, k, v, beta):
        state = step(state, k_t, v_t, beta_t)
        outputs.append(state.T @ q_t)
    return torch.stack(outputs), state
