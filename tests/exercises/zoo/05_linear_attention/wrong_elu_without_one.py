"""Elu itself, without the 1."""
# fails: feature_map-check, normalised-check


# cell: feature_map
def feature_map(x):
    return torch.where(x > 0, x, x.clamp(max=0).exp() - 1)
