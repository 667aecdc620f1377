"""Returns a float."""
# fails: count_parameters-check

# cell: count_parameters
def count_parameters(config):
    D = config["width"]
    tables = (config["vocab_size"] + config["context_length"]) * D
    return tables + config["num_layers"] * (12 * D**2 + 26 * D / 2) + 2 * D
