"""The scores are divided by the root of D, not of K: right for one head."""
# fails: causal_self_attention-check, block-check, gpt2_logits-check, parallel_block-check

# cell: causal_self_attention
def causal_self_attention(x, params, num_heads):
    B, T, D = x.shape
    qkv = x @ params["attn.c_attn.weight"] + params["attn.c_attn.bias"]
    q, k, v = (y.view(B, T, num_heads, -1).transpose(1, 2) for y in qkv.split(D, dim=-1))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    y = torch.softmax(scores.masked_fill(later, -math.inf), -1) @ v
    y = y.transpose(1, 2).reshape(B, T, D)
    return y @ params["attn.c_proj.weight"] + params["attn.c_proj.bias"]
