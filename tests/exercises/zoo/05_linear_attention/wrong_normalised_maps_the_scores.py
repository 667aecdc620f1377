"""The feature map comes after the dot product."""
# fails: normalised-check


# cell: normalised
def normalised(q, k, v):
    w = feature_map(q @ k.T).tril()
    return w @ v / w.sum(1, keepdim=True)
