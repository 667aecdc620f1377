"""Adds the MLP to nothing: the stream is lost."""
# fails: block-check, gpt2_logits-check

# cell: block
def block(x, params, num_heads):
    y = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
    x = x + causal_self_attention(y, params, num_heads)
    y = layer_norm(x, params["ln_2.weight"], params["ln_2.bias"], EPS)
    hidden = gelu(y @ params["mlp.c_fc.weight"] + params["mlp.c_fc.bias"])
    return hidden @ params["mlp.c_proj.weight"] + params["mlp.c_proj.bias"]
