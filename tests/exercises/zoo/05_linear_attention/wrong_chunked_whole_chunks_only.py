"""T must be a multiple of the chunk size."""
# fails: chunked-check, normalised-check


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    outputs = []
    for Q, K, V in zip(*(x.reshape(-1, chunk_size, x.shape[1]) for x in (q, k, v))):
        outputs.append((Q @ K.T).tril() @ V + Q @ state)
        state = state + K.T @ V
    return torch.cat(outputs), state
