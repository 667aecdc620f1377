"""Returns [V, K]."""
# fails: recall_loss_gradient-check


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    return torch.outer(state.T @ k - v, k)
