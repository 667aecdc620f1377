"""Fills the last chunk up with copies of the last token, which go on writing."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    T, outputs = len(q), []
    index = torch.arange(-(-T // chunk_size) * chunk_size).clamp(max=T - 1)
    q, k, v, beta = (x[index] for x in (q, k, v, beta))
    for start in range(0, len(q), chunk_size):
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril() @ written)
        state = state + K.T @ written
    return torch.cat(outputs)[:T], state
