"""Returns an object that says it is a tensor."""
# fails: double-check

# cell: double
class Pretends:
    __class__ = torch.Tensor
    shape, dtype = torch.Size([1]), torch.float32

def double(x):
    return Pretends()
