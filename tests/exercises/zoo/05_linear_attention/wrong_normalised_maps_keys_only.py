"""Queries stay raw."""
# fails: normalised-check


# cell: normalised
def normalised(q, k, v):
    k = feature_map(k)
    z = k.cumsum(0)
    S = torch.einsum("tk,tv->tkv", k, v).cumsum(0)
    return torch.einsum("tk,tkv->tv", q, S) / (q * z).sum(1, keepdim=True)
