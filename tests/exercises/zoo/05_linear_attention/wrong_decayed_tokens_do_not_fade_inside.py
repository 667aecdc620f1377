"""Tokens of a chunk do not fade for each other."""
# fails: decayed_chunked-check


# cell: decayed_chunked
def decayed_chunked(q, k, v, gamma, chunk_size, state):
    outputs, g = [], gamma[:, None]
    for start in range(0, q.shape[1], chunk_size):
        Q, K, V = (x[:, start : start + chunk_size] for x in (q, k, v))
        C = Q.shape[1]
        i = torch.arange(C)
        decay = (g[..., None] ** (0 * i)).expand(-1, C, C).tril()
        scores = torch.einsum("bthk,bshk->bhts", Q, K) * decay
        o = torch.einsum("bhts,bshv->bthv", scores, V)
        page = torch.einsum("bthk,bhkv->bthv", Q, state)
        outputs.append(o + torch.einsum("bthv,ht->bthv", page, g ** (i + 1)))
        new = torch.einsum("bshk,hs,bshv->bhkv", K, g ** (C - 1 - i), V)
        state = g[..., None] ** C * state + new
    return torch.cat(outputs, dim=1), state
