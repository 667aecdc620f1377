"""Normalises after each sum, as GPT-1 did."""
# fails: block-check, gpt2_logits-check

# cell: block
def block(x, params, num_heads):
    x = x + causal_self_attention(x, params, num_heads)
    x = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
    hidden = gelu(x @ params["mlp.c_fc.weight"] + params["mlp.c_fc.bias"])
    x = x + hidden @ params["mlp.c_proj.weight"] + params["mlp.c_proj.bias"]
    return layer_norm(x, params["ln_2.weight"], params["ln_2.bias"], EPS)
