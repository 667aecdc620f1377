"""Brings every query to length 1."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs = []
    for q_t, k_t, v_t, beta_t in zip(q / q.norm(dim=1, keepdim=True), k, v, beta):
        state = step(state, k_t, v_t, beta_t)
        outputs.append(state.T @ q_t)
    return torch.stack(outputs), state
