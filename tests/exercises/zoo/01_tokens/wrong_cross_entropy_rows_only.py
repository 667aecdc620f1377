"""Assumes logits [T, V], and normalises over the wrong axis otherwise."""
# fails: cross_entropy-check

# cell: cross_entropy
def cross_entropy(logits, targets):
    logp = torch.log_softmax(logits, dim=1 if logits.dim() > 1 else 0)
    return -logp.gather(-1, targets[..., None]).mean()
