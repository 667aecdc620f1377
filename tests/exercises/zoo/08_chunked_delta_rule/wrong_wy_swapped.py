"""Returns U, then W."""
# fails: wy-check


# cell: wy
def wy(k, v, beta):
    T = ut_transform(k, beta)
    return T @ v, T @ k


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    for start in range(0, len(q), chunk_size):
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        U, W = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril() @ written)
        state = state + K.T @ written
    return torch.cat(outputs), state
