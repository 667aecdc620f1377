"""Other chunks than asked for: their size changes the cost, never the answer."""


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    W, U = wy(k, v, beta)
    written = U - W @ state
    return q @ state + (q @ k.T).tril() @ written, state + k.T @ written


# cell: two_writes_chunked
def two_writes_chunked(q, k1, v1, b1, k2, v2, b2, chunk_size, state):
    """Chunks of chunk_size writes; an affine map of the page for each token of one head."""
    k, v, beta = (
        torch.stack(pair, dim=2).flatten(1, 2).transpose(1, 2)
        for pair in ((k1, k2), (v1, v2), (b1, b2))
    )
    q, o = q.transpose(1, 2), []
    one = torch.eye(q.shape[-1], dtype=q.dtype)
    M = one - beta[..., None, None] * k[..., :, None] * k[..., None, :]  # [B, H, 2 T, K, K]
    N = beta[..., None, None] * k[..., :, None] * v[..., None, :]
    M, N = M[:, :, 1::2] @ M[:, :, 0::2], M[:, :, 1::2] @ N[:, :, 0::2] + N[:, :, 1::2]
    for t in range(q.shape[2]):
        state = M[:, :, t] @ state + N[:, :, t]
        o.append((q[:, :, t, None] @ state).squeeze(2))
    return torch.stack(o, dim=1), state
