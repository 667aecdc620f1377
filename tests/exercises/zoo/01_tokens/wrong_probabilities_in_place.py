"""Sets logits to minus infinity in place."""
# fails: next_token_probabilities-check

# cell: next_token_probabilities
def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    if temperature == 0:
        temperature, top_k = 1.0, 1
    ranked = logits.argsort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        logits.scatter_(-1, ranked[..., top_k:], -torch.inf)
    p = (logits / temperature).softmax(dim=-1).gather(-1, ranked)
    if top_p is not None:
        p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, ranked, p)
