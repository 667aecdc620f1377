"""Adds eps to the standard deviation, not to the variance."""
# fails: layer_norm-check, block-check, gpt2_logits-check, parallel_block-check

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (torch.sqrt(centred.square().mean(-1, keepdim=True)) + eps) * weight + bias
