"""Reads with q / sqrt(K)."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    for t in range(len(q)):
        state = state + torch.outer(k[t], v[t])
        rows.append(q[t] @ state / q.shape[1] ** 0.5)
    return torch.stack(rows), state
