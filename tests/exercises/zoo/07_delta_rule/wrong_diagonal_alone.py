"""Takes k * k for k k^T: only the diagonal."""
# fails: transition-check


# cell: transition
def transition(k, beta):
    return torch.diag(1 - beta * k * k)
