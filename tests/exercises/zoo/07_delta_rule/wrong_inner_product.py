"""Takes the number k @ k for the matrix k k^T."""
# fails: transition-check


# cell: transition
def transition(k, beta):
    return torch.eye(len(k), dtype=k.dtype) * (1 - beta * (k @ k))
