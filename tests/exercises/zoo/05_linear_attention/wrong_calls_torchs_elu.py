"""Torch's elu does the work."""
# fails: feature_map-check, normalised-check


# cell: feature_map
def feature_map(x):
    return torch.nn.functional.elu(x) + 1
