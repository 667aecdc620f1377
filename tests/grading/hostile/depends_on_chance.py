"""Draws random numbers, without and with seeds, between its answers."""
# fails:

# cell: double
import random

def double(x):
    torch.manual_seed(0)
    random.random()
    return x * 2 + 0 * torch.rand(1)

# cell: triple
def triple(x):
    torch.seed()
    return x * 3 + 0 * torch.randn(1)
