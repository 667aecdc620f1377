"""Whatever the size asked for, chunks of 4 tokens, and T a multiple of it."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    for i in range(0, len(q) - 3, 4):
        Q, K, V, b = (x[i : i + 4] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril() @ written)
        state = state + K.T @ written
    return torch.cat([v[:0], *outputs]), state
