"""The page is kept in bfloat16."""
# fails: recurrent-check


# cell: recurrent
def recurrent(q, k, v, state):
    rows = []
    dtype = state.dtype
    for t in range(len(q)):
        state = (state + torch.outer(k[t], v[t])).bfloat16().to(dtype)
        rows.append(q[t] @ state)
    return torch.stack(rows), state
