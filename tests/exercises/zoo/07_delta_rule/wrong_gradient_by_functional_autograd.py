"""Lets torch differentiate, by torch.func."""
# fails: recall_loss_gradient-check

# cell: recall_loss_gradient
recall_gradient_of_torch = torch.func.grad(lambda S, k, v: (S.T @ k - v).square().sum() / 2)


def recall_loss_gradient(state, k, v):
    return recall_gradient_of_torch(state, k, v)
