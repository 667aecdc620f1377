"""Fills the last chunk with copies of the last token, and keeps them on the page."""
# fails: chunked-check


# cell: chunked
def chunked(q, k, v, chunk_size, state):
    T, outputs = len(q), []
    pad = -T % chunk_size
    q, k, v = (torch.cat([x, x[-1:].expand(pad, -1)]) for x in (q, k, v))
    for start in range(0, T, chunk_size):
        Q, K, V = (x[start : start + chunk_size] for x in (q, k, v))
        outputs.append((Q @ K.T).tril() @ V + Q @ state)
        state = state + K.T @ V
    return torch.cat(outputs)[:T], state
