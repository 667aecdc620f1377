"""Calls the package's delta rule."""
# fails: chunked-check, two_writes_chunked-check


# cell: chunked
def chunked(q, k, v, beta, chunk_size, state):
    return package_recurrent(q, k, v, beta, state)
