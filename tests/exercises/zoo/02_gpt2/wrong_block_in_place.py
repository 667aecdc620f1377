"""Adds to x itself: the caller finds its tensor changed."""
# fails: block-check

# cell: block
def block(x, params, num_heads):
    y = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
    x += causal_self_attention(y, params, num_heads)
    y = layer_norm(x.clone(), params["ln_2.weight"], params["ln_2.bias"], EPS)
    hidden = gelu(y @ params["mlp.c_fc.weight"] + params["mlp.c_fc.bias"])
    return x + hidden @ params["mlp.c_proj.weight"] + params["mlp.c_proj.bias"]
