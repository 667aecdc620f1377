"""Multiplies the whole of I - k k^T by beta."""
# fails: transition-check


# cell: transition
def transition(k, beta):
    return beta * (torch.eye(len(k), dtype=k.dtype) - torch.outer(k, k))
