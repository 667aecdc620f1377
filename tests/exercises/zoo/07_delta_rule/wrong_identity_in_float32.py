"""Makes a matrix of the default dtype."""
# fails: transition-check


# cell: transition
def transition(k, beta):
    M = torch.eye(len(k))
    M -= beta * torch.outer(k, k)
    return M
