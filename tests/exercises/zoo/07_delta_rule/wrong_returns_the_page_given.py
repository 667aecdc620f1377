"""Keeps the new page to itself and returns the one that came in."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    S, outputs = state, []
    for q_t, k_t, v_t, beta_t in zip(q, k, v, beta):
        S = step(S, k_t, v_t, beta_t)
        outputs.append(S.T @ q_t)
    return torch.stack(outputs), state
