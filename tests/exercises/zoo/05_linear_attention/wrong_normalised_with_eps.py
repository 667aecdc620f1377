"""1e-6 is added to the denominator."""
# fails: normalised-check


# cell: normalised
def normalised(q, k, v):
    q, k = feature_map(q), feature_map(k)
    z = k.cumsum(0)
    S = torch.einsum("tk,tv->tkv", k, v).cumsum(0)
    return torch.einsum("tk,tkv->tv", q, S) / ((q * z).sum(1, keepdim=True) + 1e-6)
