"""exp(x) overflows in the branch that is not taken: NaN gradients."""
# fails: feature_map-check


# cell: feature_map
def feature_map(x):
    return torch.where(x > 0, x + 1, x.exp())
