"""Counts 12 D squared for a block: no biases, no LayerNorm."""
# fails: count_parameters-check

# cell: count_parameters
def count_parameters(config):
    D = config["width"]
    return (config["vocab_size"] + config["context_length"] + 12 * D * config["num_layers"]) * D
