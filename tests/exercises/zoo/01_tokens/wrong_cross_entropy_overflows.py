"""Sums exp(logits) without taking the largest off first."""
# fails: cross_entropy-check

# cell: cross_entropy
def cross_entropy(logits, targets):
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return (logits.exp().sum(dim=-1).log() - chosen).mean()
