"""Adds the position vectors along the batch: right only if B equals T."""
# fails: gpt2_logits-check

# cell: gpt2_logits
def gpt2_logits(ids, params, num_heads):
    positions = params["wpe.weight"][: ids.shape[0]]
    x = params["wte.weight"][ids] + positions[:, None]
    for block_params in params["blocks"]:
        x = block(x, block_params, num_heads)
    x = layer_norm(x, params["ln_f.weight"], params["ln_f.bias"], EPS)
    return x @ params["wte.weight"].T
