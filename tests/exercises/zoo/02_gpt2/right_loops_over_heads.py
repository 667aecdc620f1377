"""One head after the other, one token after the other; the sum over channels written out."""

# cell: layer_norm
def layer_norm(x, weight, bias, eps):
    width = x.shape[-1]
    mean = x.sum(-1, keepdim=True) / width
    mean_square = (x * x).sum(-1, keepdim=True) / width
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / width
    assert mean_square.shape == variance.shape
    return weight * (x - mean) * (variance + eps) ** -0.5 + bias

# cell: gelu
def gelu(x):
    # (1 + tanh(z)) / 2 is the sigmoid of 2 z
    return x * torch.sigmoid(2 * (2 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x))

# cell: causal_self_attention
def causal_self_attention(x, params, num_heads):
    rows = []
    for sequence in x:
        qkv = sequence @ params["attn.c_attn.weight"] + params["attn.c_attn.bias"]
        q, k, v = qkv.chunk(3, dim=-1)
        width = x.shape[-1] // num_heads
        heads = []
        for h in range(num_heads):
            part = slice(h * width, (h + 1) * width)
            outputs = []
            for t in range(len(sequence)):
                scores = k[: t + 1, part] @ q[t, part] * width**-0.5
                weights = torch.exp(scores - scores.max())
                outputs.append(weights @ v[: t + 1, part] / weights.sum())
            heads.append(torch.stack(outputs))
        rows.append(torch.cat(heads, dim=-1))
    return torch.stack(rows) @ params["attn.c_proj.weight"] + params["attn.c_proj.bias"]

# cell: count_parameters
def count_parameters(config):
    d, total = config["width"], 0
    for _ in range(config["num_layers"]):
        for rows, columns in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)):
            total += rows * columns + columns
        total += 4 * d
    return total + 2 * d + config["vocab_size"] * d + config["context_length"] * d
