"""Works in place on its input."""
# fails: gelu-check, block-check, gpt2_logits-check, parallel_block-check

# cell: gelu
def gelu(x):
    z = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    x *= 0.5
    x *= 1 + torch.tanh(z)
    return x
