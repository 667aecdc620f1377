"""W is Diag(beta) K: later tokens erase again what earlier ones have erased."""
# fails: wy-check, chunked-check, two_writes_chunked-check


# cell: wy
def wy(k, v, beta):
    return beta[:, None] * k, ut_transform(k, beta) @ v
