"""Divides by the key's length squared, as if a write did."""
# fails: transition-check


# cell: transition
def transition(k, beta):
    return torch.eye(len(k), dtype=k.dtype) - beta * torch.outer(k, k) / (k @ k)
