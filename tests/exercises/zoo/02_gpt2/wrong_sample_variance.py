"""Divides the squares by D - 1: torch.var with its default correction."""
# fails: layer_norm-check, block-check, gpt2_logits-check, parallel_block-check

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(x.var(-1, keepdim=True) + eps) * weight + bias
