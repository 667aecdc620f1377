"""The features are always float32."""
# fails: feature_map-check, normalised-check


# cell: feature_map
def feature_map(x):
    x = x.float()
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
