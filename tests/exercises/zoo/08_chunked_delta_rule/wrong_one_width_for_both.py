"""Transforms keys and values as one stacked tensor: K = V assumed."""
# fails: wy-check, chunked-check, two_writes_chunked-check


# cell: wy
def wy(k, v, beta):
    W, U = ut_transform(k, beta) @ torch.stack([k, v])
    return W, U
