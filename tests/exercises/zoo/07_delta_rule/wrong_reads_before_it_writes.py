"""Each token reads the page as it was before its own write."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for q_t, k_t, v_t, beta_t in zip(q, k, v, beta):
        outputs.append(state.T @ q_t)
        state = step(state, k_t, v_t, beta_t)
    return torch.stack(outputs), state
