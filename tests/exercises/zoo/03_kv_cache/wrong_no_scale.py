"""The scores are not divided by sqrt(K)."""
# fails: cached_attention-check, generate-check


# cell: cached_attention
def cached_attention(q, k, v, cache):
    keys, values = cache.append(k, v)
    T, S = q.shape[1], keys.shape[1]
    scores = torch.einsum("bthk,bshk->bhts", q, keys)
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhts,bshv->bthv", weights, values)
