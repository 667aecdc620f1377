"""Takes the logarithm of the softmax, which underflows."""
# fails: cross_entropy-check

# cell: cross_entropy
def cross_entropy(logits, targets):
    p = logits.softmax(dim=-1)
    return -p.gather(-1, targets[..., None]).log().mean()
