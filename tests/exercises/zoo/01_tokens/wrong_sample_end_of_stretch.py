"""A stretch holds its end rather than its beginning."""
# fails: sample-check

# cell: sample
def sample(probabilities, uniform):
    ends = probabilities.cumsum(dim=-1)
    drawn = (ends < uniform[..., None]).sum(dim=-1)
    return drawn.clamp(max=probabilities.shape[-1] - 1)
