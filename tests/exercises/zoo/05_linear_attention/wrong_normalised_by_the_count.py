"""Divides by the number of tokens."""
# fails: normalised-check


# cell: normalised
def normalised(q, k, v):
    q, k = feature_map(q), feature_map(k)
    z = k.cumsum(0)
    S = torch.einsum("tk,tv->tkv", k, v).cumsum(0)
    return torch.einsum("tk,tkv->tv", q, S) / torch.arange(1, len(q) + 1, dtype=q.dtype)[:, None]
