"""Keeps every token that ties with the k-th."""
# fails: next_token_probabilities-check

# cell: next_token_probabilities
def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    ranked = logits.argsort(dim=-1, descending=True, stable=True)
    if temperature == 0:
        temperature, top_k = 1.0, 1
    p = torch.softmax(logits / temperature, dim=-1).gather(-1, ranked)
    if top_k is not None:
        border = p[..., min(top_k, p.shape[-1]) - 1, None]
        p = torch.where(p >= border, p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    if top_p is not None:
        likelier = p.cumsum(dim=-1) - p
        p = torch.where(likelier < top_p, p, 0)
        p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(p).scatter(-1, ranked, p)
