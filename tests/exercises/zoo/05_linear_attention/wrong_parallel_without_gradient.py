"""The mask is put on by way of numpy."""
# fails: parallel-check


# cell: parallel
def parallel(q, k, v):
    import numpy

    s = numpy.tril((q @ k.T).detach().numpy())
    return torch.from_numpy(s) @ v
