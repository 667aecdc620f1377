"""exp(x) - 1 + 1 is 0 far below 0."""
# fails: feature_map-check, normalised-check


# cell: feature_map
def feature_map(x):
    return torch.where(x > 0, x, torch.expm1(x.clamp(max=0))) + 1
