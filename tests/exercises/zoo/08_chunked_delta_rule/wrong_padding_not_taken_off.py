"""Pads with zeros, and returns the outputs of the padding too."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs, missing = [], -len(q) % chunk_size
    q, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, k, v))
    beta = F.pad(beta, (0, missing))
    for start in range(0, len(q), chunk_size):
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril() @ written)
        state = state + K.T @ written
    return torch.cat(outputs), state
