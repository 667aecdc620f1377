"""Lets a token be joined twice: a a a becomes aa aa."""
# fails: train_bpe-check

# cell: train_bpe
def _join(row, left, right, new):
    joined = []
    for i, token in enumerate(row):
        if i + 1 < len(row) and [token, row[i + 1]] == [left, right]:
            joined.append(new)
        elif i == 0 or [row[i - 1], token] != [left, right]:
            joined.append(token)
    return joined


def train_bpe(text, num_merges):
    rows = words(text)
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
