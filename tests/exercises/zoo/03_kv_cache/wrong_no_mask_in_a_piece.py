"""All tokens of a piece see one another."""
# fails: cached_attention-check, generate-check


# cell: cached_attention
def cached_attention(q, k, v, cache):
    keys, values = cache.append(k, v)
    T, S = q.shape[1], keys.shape[1]
    scores = torch.einsum("bthk,bshk->bhts", q, keys) / q.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    return torch.einsum("bhts,bshv->bthv", weights, values)
