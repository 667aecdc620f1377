"""In bits rather than nats."""
# fails: cross_entropy-check

# cell: cross_entropy
def cross_entropy(logits, targets):
    logp = logits.log_softmax(dim=-1).gather(-1, targets[..., None])
    return -logp.mean() / math.log(2)
