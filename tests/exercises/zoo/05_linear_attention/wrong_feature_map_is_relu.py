"""relu(x) + 1: flat below 0."""
# fails: feature_map-check, normalised-check


# cell: feature_map
def feature_map(x):
    return x.clamp(min=0) + 1
