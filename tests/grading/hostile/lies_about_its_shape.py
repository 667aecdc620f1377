"""Returns a tensor of a class that lies about shape, dtype and values."""
# fails: double-check

# cell: double
class Liar(torch.Tensor):
    shape = property(lambda self: torch.Size([1]))
    dtype = property(lambda self: torch.float32)
    def __torch_function__(self, *args, **kwargs):
        return torch.tensor(True)

def double(x):
    return torch.zeros(7, dtype=torch.float64).as_subclass(Liar)
