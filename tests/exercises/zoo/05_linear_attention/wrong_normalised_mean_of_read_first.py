"""A token's own key and value are not counted, but for the first."""
# fails: normalised-check


# cell: normalised
def normalised(q, k, v):
    q, k = feature_map(q), feature_map(k)
    z = torch.cat([k[:1], k[:-1].cumsum(0)])
    S = torch.einsum("tk,tv->tkv", k, v)
    S = torch.cat([S[:1], S[:-1].cumsum(0)])
    return torch.einsum("tk,tkv->tv", q, S) / (q * z).sum(1, keepdim=True)
