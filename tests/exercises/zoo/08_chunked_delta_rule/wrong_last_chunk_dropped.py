"""Takes whole chunks alone."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    for i in range(len(q) // chunk_size):
        Q, K, V, b = (x[i * chunk_size : (i + 1) * chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril() @ written)
        state = state + K.T @ written
    return torch.cat(outputs), state
