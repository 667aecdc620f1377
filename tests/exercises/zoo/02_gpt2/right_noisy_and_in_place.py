"""Prints, warns, logs, and works in place on tensors of its own."""

# cell: layer_norm
import logging
import sys
import warnings

def layer_norm(x, weight, bias, eps):
    print("layer_norm", x.shape)
    print("to stderr", file=sys.stderr)
    warnings.warn("about to normalise")
    logging.getLogger("mine").error("not an error")
    y = x.clone()
    y -= y.mean(-1, keepdim=True)
    return torch.addcmul(bias, y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps), weight)

# cell: causal_self_attention
def causal_self_attention(x, params, num_heads):
    B, T, D = x.shape
    qkv = x.reshape(B * T, D).matmul(params["attn.c_attn.weight"])
    qkv += params["attn.c_attn.bias"]
    q, k, v = (y.reshape(B, T, num_heads, -1).transpose(1, 2) for y in qkv.split(D, dim=1))
    scores = q @ k.transpose(-2, -1)
    scores *= (D // num_heads) ** -0.5
    allowed = torch.arange(T)[:, None] >= torch.arange(T)
    scores = torch.where(allowed, scores, torch.finfo(x.dtype).min)
    y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)
    y = y @ params["attn.c_proj.weight"]
    y += params["attn.c_proj.bias"]
    return y

# cell: block
def block(x, params, num_heads):
    z = x.clone()
    z += causal_self_attention(
        layer_norm(z.clone(), params["ln_1.weight"], params["ln_1.bias"], EPS), params, num_heads
    )
    y = layer_norm(z.clone(), params["ln_2.weight"], params["ln_2.bias"], EPS)
    y = torch.addmm(params["mlp.c_fc.bias"], y.flatten(0, 1), params["mlp.c_fc.weight"])
    y = torch.addmm(params["mlp.c_proj.bias"], gelu(y), params["mlp.c_proj.weight"])
    return z + y.view_as(z)
