"""Writes the chunk before it reads the page."""
# fails: chunked-check, normalised-check


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    outputs = []
    for start in range(0, len(q), chunk_size):
        Q, K, V = (x[start : start + chunk_size] for x in (q, k, v))
        state = state + K.T @ V
        outputs.append((Q @ K.T).tril() @ V + Q @ state)
    return torch.cat(outputs), state
