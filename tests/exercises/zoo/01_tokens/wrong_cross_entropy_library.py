"""Calls the library's own cross_entropy."""
# fails: cross_entropy-check

# cell: cross_entropy
def cross_entropy(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
