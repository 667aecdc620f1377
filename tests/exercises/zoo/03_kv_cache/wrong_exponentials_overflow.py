"""exp of the scores without taking off the largest."""
# fails: cached_attention-check


# cell: cached_attention
def cached_attention(q, k, v, cache):
    keys, values = cache.append(k, v)
    T, S = q.shape[1], keys.shape[1]
    scores = torch.einsum("bthk,bshk->bhts", q, keys) / q.shape[-1] ** 0.5
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    e = scores.exp() * mask
    weights = e / e.sum(dim=-1, keepdim=True)
    return torch.einsum("bhts,bshv->bthv", weights, values)
