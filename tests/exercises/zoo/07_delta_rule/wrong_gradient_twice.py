"""Forgets the 1/2 in the loss."""
# fails: recall_loss_gradient-check


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    return 2 * torch.outer(k, state.T @ k - v)
