"""Returns probabilities where logits are asked."""
# fails: gpt2_logits-check

# cell: gpt2_logits
def gpt2_logits(ids, params, num_heads):
    x = params["wte.weight"][ids] + params["wpe.weight"][: ids.shape[1]]
    for block_params in params["blocks"]:
        x = block(x, block_params, num_heads)
    x = layer_norm(x, params["ln_f.weight"], params["ln_f.bias"], EPS)
    return torch.softmax(x @ params["wte.weight"].T, dim=-1)
