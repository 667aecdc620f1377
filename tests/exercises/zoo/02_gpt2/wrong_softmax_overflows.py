"""Writes softmax as exp over sum without taking off the maximum."""
# fails: causal_self_attention-check

# cell: causal_self_attention
def causal_self_attention(x, params, num_heads):
    B, T, D = x.shape
    qkv = x @ params["attn.c_attn.weight"] + params["attn.c_attn.bias"]
    q, k, v = (y.view(B, T, num_heads, -1).transpose(1, 2) for y in qkv.split(D, dim=-1))
    allowed = torch.ones(T, T, dtype=x.dtype).tril()
    scores = q @ k.transpose(-1, -2) / math.sqrt(D // num_heads)
    weights = torch.exp(scores) * allowed
    y = weights / weights.sum(-1, keepdim=True) @ v
    y = y.transpose(1, 2).reshape(B, T, D)
    return y @ params["attn.c_proj.weight"] + params["attn.c_proj.bias"]
