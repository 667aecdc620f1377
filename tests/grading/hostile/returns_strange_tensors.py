"""Returns a sparse tensor of tensors on no device."""
# fails: double-check

# cell: double
def double(x):
    return x.to_sparse() if len(x) == 1 else x.to("meta")
