"""The page it returns lacks the last token's write."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, beta, state):
    outputs, S = [], state
    for q_t, k_t, v_t, beta_t in zip(q, k, v, beta):
        state = S
        S = step(state, k_t, v_t, beta_t)
        outputs.append(S.T @ q_t)
    return torch.stack(outputs), state
