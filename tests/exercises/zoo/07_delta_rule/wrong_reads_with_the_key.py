"""Reads with k_t, not with q_t."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for k_t, v_t, beta_t in zip(k, v, beta):
        state = step(state, k_t, v_t, beta_t)
        outputs.append(state.T @ k_t)
    return torch.stack(outputs), state
