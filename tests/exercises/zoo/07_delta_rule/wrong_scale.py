"""Scales what is read by 1 / sqrt(K)."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for q_t, k_t, v_t, beta_t in zip(q, k, v, beta):
        state = step(state, k_t, v_t, beta_t)
        outputs.append(state.T @ q_t / len(q_t) ** 0.5)
    return torch.stack(outputs), state
