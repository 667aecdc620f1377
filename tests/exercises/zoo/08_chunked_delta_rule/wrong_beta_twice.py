"""Multiplies keys and values by the strengths that T holds already."""
# fails: wy-check, chunked-check, two_writes_chunked-check


# cell: wy
def wy(k, v, beta):
    T, b = ut_transform(k, beta), beta[:, None]
    return T @ (b * k), T @ (b * v)
