"""Both sums run over later tokens too."""
# fails: normalised-check


# cell: normalised
def normalised(q, k, v):
    q, k = feature_map(q), feature_map(k)
    z = k.sum(0)
    S = torch.einsum("tk,tv->kv", k, v)
    return q @ S / (q * z).sum(1, keepdim=True)
