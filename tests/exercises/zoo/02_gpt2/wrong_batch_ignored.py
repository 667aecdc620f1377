"""Works on the first sequence only and repeats it."""
# fails: causal_self_attention-check, block-check, gpt2_logits-check, parallel_block-check

# cell: causal_self_attention
def causal_self_attention(x, params, num_heads):
    T, D = x[0].shape
    qkv = x[0] @ params["attn.c_attn.weight"] + params["attn.c_attn.bias"]
    q, k, v = (y.view(T, num_heads, -1).transpose(0, 1) for y in qkv.split(D, dim=-1))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(D // num_heads)
    y = torch.softmax(scores.masked_fill(later, -math.inf), -1) @ v
    y = y.transpose(0, 1).reshape(T, D)
    return (y @ params["attn.c_proj.weight"] + params["attn.c_proj.bias"]).expand_as(x)
