"""Reads V', but adds U to the page."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    for start in range(0, len(q), chunk_size):
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        outputs.append(Q @ state + (Q @ K.T).tril() @ (U - W @ state))
        state = state + K.T @ U
    return torch.cat(outputs), state
