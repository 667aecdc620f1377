"""Counts each distinct word once, however often it occurs."""
# fails: train_bpe-check

# cell: train_bpe
def _join(row, left, right, new):
    joined = []
    for token in row:
        if token == right and joined and joined[-1] == left:
            joined[-1] = new
        else:
            joined.append(token)
    return joined


def train_bpe(text, num_merges):
    rows = list({tuple(word): word for word in words(text)}.values())
    merges = []
    for new in range(256, 256 + num_merges):
        counts = {}
        for row in rows:
            for pair in pairwise(row):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        left, right = min(counts, key=lambda pair: (-counts[pair], pair))
        rows = [_join(row, left, right, new) for row in rows]
        merges.append([left, right])
    return merges
