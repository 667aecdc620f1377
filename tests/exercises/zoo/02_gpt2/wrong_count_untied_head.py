"""Counts the head although it is the token embedding once more."""
# fails: count_parameters-check

# cell: count_parameters
def count_parameters(config):
    D = config["width"]
    in_a_block = 12 * D * D + 13 * D
    tables = (2 * config["vocab_size"] + config["context_length"]) * D
    return tables + config["num_layers"] * in_a_block + 2 * D
