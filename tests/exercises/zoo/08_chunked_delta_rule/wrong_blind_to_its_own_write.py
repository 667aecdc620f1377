"""The mask leaves out the diagonal: reads before it writes."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    for start in range(0, len(q), chunk_size):
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril(-1) @ written)
        state = state + K.T @ written
    return torch.cat(outputs), state
