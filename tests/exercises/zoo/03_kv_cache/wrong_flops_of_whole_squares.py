"""Without a cache every token is taken to read all positions."""
# fails: decode_flops-check


# cell: decode_flops
def decode_flops(config, context, cached):
    D, M, H = config["width"], config["mlp_width"], config["num_heads"]
    K, V = config["key_width"], config["value_width"]
    dense = config["num_layers"] * (2 * D * H * (2 * K + 2 * V) + 4 * D * M)
    head = 2 * D * config["vocab_size"]
    read = config["num_layers"] * 2 * H * (K + V)
    if cached:
        return dense + head + context * read
    return context * (dense + head) + context * context * read
