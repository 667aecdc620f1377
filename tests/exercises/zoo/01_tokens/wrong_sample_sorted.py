"""Lays the stretches in order of likelihood, not of ids."""
# fails: sample-check

# cell: sample
def sample(probabilities, uniform):
    p, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    drawn = (p.cumsum(dim=-1) <= uniform[..., None]).sum(dim=-1, keepdim=True)
    last = (p > 0).sum(dim=-1, keepdim=True) - 1
    return ids.gather(-1, torch.minimum(drawn, last))[..., 0]
