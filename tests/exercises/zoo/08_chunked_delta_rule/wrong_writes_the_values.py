"""U is Diag(beta) V: what earlier tokens have written is not taken into account."""
# fails: wy-check, chunked-check, two_writes_chunked-check


# cell: wy
def wy(k, v, beta):
    return ut_transform(k, beta) @ k, beta[:, None] * v
