"""Returns beta k k^T: what is taken off, not what is left."""
# fails: transition-check


# cell: transition
def transition(k, beta):
    return beta * torch.outer(k, k)
