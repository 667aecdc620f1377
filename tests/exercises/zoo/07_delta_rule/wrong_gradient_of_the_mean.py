"""The gradient of the mean of squares."""
# fails: recall_loss_gradient-check


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    return torch.outer(k, state.T @ k - v) / len(v)
