"""Counts as many blocks as there are heads: right for the smallest GPT-2, which has 12 of both."""
# fails: count_parameters-check


# cell: count_parameters
def count_parameters(config):
    D = config["width"]
    embeddings = (config["vocab_size"] + config["context_length"]) * D
    return embeddings + config["num_heads"] * (12 * D * D + 13 * D) + 2 * D
