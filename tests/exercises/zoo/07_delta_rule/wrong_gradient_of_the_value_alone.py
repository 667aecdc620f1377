"""Forgets what the page holds already: -k v^T."""
# fails: recall_loss_gradient-check


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    return -torch.outer(k, v)
