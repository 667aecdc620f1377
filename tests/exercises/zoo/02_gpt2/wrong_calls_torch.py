"""Calls torch's own LayerNorm."""
# fails: layer_norm-check, block-check, gpt2_logits-check, parallel_block-check

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, weight.shape, weight, bias, eps)
