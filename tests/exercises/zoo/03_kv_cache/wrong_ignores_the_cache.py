"""A piece is kept, but attends to itself alone."""
# fails: cached_attention-check, generate-check


# cell: cached_attention
def cached_attention(q, k, v, cache):
    cache.append(k, v)
    keys, values = k, v
    T, S = q.shape[1], keys.shape[1]
    scores = torch.einsum("bthk,bshk->bhts", q, keys) / q.shape[-1] ** 0.5
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhts,bshv->bthv", weights, values)
