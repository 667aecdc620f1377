"""What is erased carries no gradient."""
# fails: wy-check, chunked-check, two_writes_chunked-check


# cell: wy
def wy(k, v, beta):
    T = ut_transform(k, beta)
    return (T @ k).detach(), T @ v
