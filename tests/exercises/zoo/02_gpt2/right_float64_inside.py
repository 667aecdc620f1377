"""Computes in float64 and returns the dtype that came in; nothing is shared between functions."""

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    y = x.double()
    variance, mean = torch.var_mean(y, dim=-1, correction=0, keepdim=True)
    y = (y - mean) / (variance + eps).sqrt()
    return (y * weight.double() + bias.double()).to(x.dtype)

# cell: gpt2_logits
def gpt2_logits(ids, params, num_heads):
    positions = torch.arange(ids.shape[-1])
    x = torch.index_select(params["wte.weight"], 0, ids.flatten()).view(*ids.shape, -1)
    x = x + params["wpe.weight"][positions]
    for layer in range(len(params["blocks"])):
        x = block(x, params["blocks"][layer], num_heads)
    x = layer_norm(x, params["ln_f.weight"], params["ln_f.bias"], EPS)
    return torch.einsum("btd,vd->btv", x, params["wte.weight"])

# cell: parallel_block
def parallel_block(x, params, num_heads):
    y = layer_norm(x, params["ln_1.weight"], params["ln_1.bias"], EPS)
    hidden = gelu(y @ params["mlp.c_fc.weight"] + params["mlp.c_fc.bias"])
    found = hidden @ params["mlp.c_proj.weight"] + params["mlp.c_proj.bias"]
    return causal_self_attention(y, params, num_heads) + found + x
