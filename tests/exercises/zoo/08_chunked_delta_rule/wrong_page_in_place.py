"""Adds to the caller's page in place."""
# fails: chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    outputs = []
    for start in range(0, len(q), chunk_size):
        Q, K, V, b = (x[start : start + chunk_size] for x in (q, k, v, beta))
        W, U = wy(K, V, b)
        written = U - W @ state
        outputs.append(Q @ state + (Q @ K.T).tril() @ written)
        state += K.T @ written
    return torch.cat(outputs), state


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    B, T, H, K = q.shape
    o, pages = torch.empty_like(v1), torch.empty_like(state)
    for b in range(B):
        for h in range(H):
            S = state[b, h]
            for t in range(T):
                for k, v, beta in ((k1, v1, b1), (k2, v2, b2)):
                    change = beta[b, t, h] * (v[b, t, h] - k[b, t, h] @ S)
                    S = S + torch.outer(k[b, t, h], change)
                o[b, t, h] = q[b, t, h] @ S
            pages[b, h] = S
    return o, pages
