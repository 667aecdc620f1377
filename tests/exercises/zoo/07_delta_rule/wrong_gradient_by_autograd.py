"""Lets torch differentiate."""
# fails: recall_loss_gradient-check


# cell: recall_loss_gradient
def recall_loss_gradient(state, k, v):
    S = state.detach().requires_grad_()
    with torch.enable_grad():
        loss = (S.T @ k - v).square().sum() / 2
    loss.backward()
    return S.grad
