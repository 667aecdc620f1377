"""Calls the package's own LayerNorm."""
# fails: layer_norm-check, block-check, gpt2_logits-check, parallel_block-check

# cell: layer_norm
from llmcourse.layers.norm import LayerNorm

def layer_norm(x, weight, bias, eps):
    layer = LayerNorm(x.shape[-1], eps)
    return functional_call(layer, {"weight": weight, "bias": bias}, (x,))
