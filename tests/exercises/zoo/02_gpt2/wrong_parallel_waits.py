"""The parallel block's MLP still reads the attention's result."""
# fails: parallel_block-check

# cell: parallel_block
def parallel_block(x, params, num_heads):
    y = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
    x = x + causal_self_attention(y, params, num_heads)
    y = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
    hidden = gelu(y @ params["mlp.c_fc.weight"] + params["mlp.c_fc.bias"])
    return x + hidden @ params["mlp.c_proj.weight"] + params["mlp.c_proj.bias"]
