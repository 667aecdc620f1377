"""Cuts into chunks by reshape, which needs T to be a multiple of their size."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    cut = [x.reshape(-1, chunk_size, *x.shape[1:]) for x in (q, k, v, beta)]
    for Q, K, V, b in zip(*cut):
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril() @ written)
        state = state + K.T @ written
    return torch.cat(outputs), state
