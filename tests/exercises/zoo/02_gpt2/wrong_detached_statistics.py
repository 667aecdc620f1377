"""Mean and variance under torch.no_grad: right values, wrong gradients."""
# fails: layer_norm-check, block-check, gpt2_logits-check, parallel_block-check

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    with torch.no_grad():
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, correction=0)
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias
