"""Falls back on the last id even if its probability is 0."""
# fails: sample-check

# cell: sample
def sample(probabilities, uniform):
    ends = probabilities.cumsum(dim=-1)
    drawn = (ends <= uniform[..., None]).sum(dim=-1)
    return drawn.clamp(max=probabilities.shape[-1] - 1)
