"""Heads and tokens are swapped by reshape, not by transpose."""
# fails: decayed_chunked-check


# cell: decayed_chunked
def decayed_chunked(q, k, v, gamma, chunk_size, state):
    B, T, H, K = q.shape
    q, k = q.reshape(B, H, T, K), k.reshape(B, H, T, K)
    v, g, outputs = v.reshape(B, H, T, -1), gamma[:, None], []
    for start in range(0, T, chunk_size):
        Qn, Kn, Vn = (x[:, :, start : start + chunk_size] for x in (q, k, v))
        C = Qn.shape[2]
        i = torch.arange(C)
        decay = (g[..., None] ** (i[:, None] - i).clamp(min=0)).tril()
        o = (Qn @ Kn.mT * decay) @ Vn + (g ** (i + 1))[..., None] * (Qn @ state)
        state = g[..., None] ** C * state + (Kn * (g ** (C - 1 - i))[..., None]).mT @ Vn
        outputs.append(o)
    return torch.cat(outputs, dim=2).reshape(B, T, H, -1), state
