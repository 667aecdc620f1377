"""Cut off from its inputs: a number put into a new tensor."""
# fails: cross_entropy-check

# cell: cross_entropy
def cross_entropy(logits, targets):
    logp = logits.log_softmax(dim=-1).gather(-1, targets[..., None])
    return torch.tensor(-logp.mean().item(), dtype=logits.dtype)
