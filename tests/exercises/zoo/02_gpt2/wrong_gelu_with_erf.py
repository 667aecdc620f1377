"""The exact GELU, with erf."""
# fails: gelu-check, block-check, gpt2_logits-check, parallel_block-check

# cell: gelu
def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
