"""Queries of a later piece are taken to stand at the start."""
# fails: cached_attention-check, generate-check


# cell: cached_attention
def cached_attention(q, k, v, cache):
    keys, values = cache.append(k, v)
    T, S = q.shape[1], keys.shape[1]
    scores = torch.einsum("bthk,bshk->bhts", q, keys) / q.shape[-1] ** 0.5
    mask = torch.ones(T, S, dtype=torch.bool).tril()
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhts,bshv->bthv", weights, values)
