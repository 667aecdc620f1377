"""The sum over positions, not the mean."""
# fails: cross_entropy-check

# cell: cross_entropy
def cross_entropy(logits, targets):
    return -logits.log_softmax(dim=-1).gather(-1, targets[..., None]).sum()
