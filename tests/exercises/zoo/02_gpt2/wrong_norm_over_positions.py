"""Takes mean and variance over all but the batch: tokens are mixed."""
# fails: layer_norm-check, block-check, gpt2_logits-check, parallel_block-check

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    axes = tuple(range(1, x.dim())) or (0,)
    centred = x - x.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    return centred / torch.sqrt(variance + eps) * weight + bias
