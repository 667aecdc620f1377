"""Writes into the tensor that came in."""
# fails: feature_map-check, normalised-check


# cell: feature_map
def feature_map(x):
    with torch.no_grad():
        x.copy_(torch.where(x > 0, x + 1, x.clamp(max=0).exp()))
    return x
