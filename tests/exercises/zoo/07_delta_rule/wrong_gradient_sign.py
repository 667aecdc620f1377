"""The direction of the write instead of the gradient: downhill."""
# fails: recall_loss_gradient-check


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    return torch.outer(k, v - state.T @ k)
