"""Reshapes [B, T, D] to [B, H, T, K] in one go: positions and heads are mixed."""
# fails: causal_self_attention-check, block-check, gpt2_logits-check, parallel_block-check

# cell: causal_self_attention
def causal_self_attention(x, params, num_heads):
    B, T, D = x.shape
    qkv = x @ params["attn.c_attn.weight"] + params["attn.c_attn.bias"]
    q, k, v = (y.reshape(B, num_heads, T, -1) for y in qkv.split(D, dim=-1))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(D // num_heads)
    y = torch.softmax(scores.masked_fill(later, -math.inf), -1) @ v
    y = y.transpose(1, 2).reshape(B, T, D)
    return y @ params["attn.c_proj.weight"] + params["attn.c_proj.bias"]
