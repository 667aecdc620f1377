"""Counts the pairs of the text once, and never those that merges make."""
# fails: train_bpe-check

# cell: train_bpe
def train_bpe(text, num_merges):
    counts = {}
    for row in words(text):
        for pair in pairwise(row):
            counts[pair] = counts.get(pair, 0) + 1
    best = sorted(counts, key=lambda pair: (-counts[pair], pair))
    return [list(pair) for pair in best[:num_merges]]
