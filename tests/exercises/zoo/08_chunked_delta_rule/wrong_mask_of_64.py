"""The mask of a chunk is made once, 64 by 64, and cut to size: larger chunks fail."""
# fails: chunked-check


# cell: chunked
MASK = torch.ones(64, 64).tril()


def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    for start in range(0, len(q), chunk_size):
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T * MASK[: len(Q), : len(Q)].to(Q)) @ written)
        state = state + K.T @ written
    return torch.cat(outputs), state
