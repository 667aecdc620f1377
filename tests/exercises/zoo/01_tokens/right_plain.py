"""Lists and loops throughout: no tensor operation where a number will do."""

# cell: train_bpe
def count_pairs(rows):
    counts = {}
    for row in rows:
        for i in range(len(row) - 1):
            pair = (row[i], row[i + 1])
            counts[pair] = counts.get(pair, 0) + 1
    return counts


def train_bpe(text, num_merges):
    rows = words(text)
    merges = []
    for n in range(num_merges):
        counts = count_pairs(rows)
        if len(counts) == 0:
            return merges
        ordered = sorted(counts)
        best = ordered[0]
        for pair in ordered:
            if counts[pair] > counts[best]:
                best = pair
        for row in rows:
            i = 0
            while i < len(row) - 1:
                if (row[i], row[i + 1]) == best:
                    row[i : i + 2] = [256 + n]
                i += 1
        merges.append(list(best))
    return merges

# cell: encode
def encode_word(row, merges):
    pairs = [[row[i], row[i + 1]] for i in range(len(row) - 1)]
    for n in range(len(merges)):
        if list(merges[n]) in pairs:
            i = pairs.index(list(merges[n]))
            return encode_word(row[:i] + [256 + n] + row[i + 2 :], merges)
    return row


def encode(text, merges):
    result = []
    for word in words(text):
        result = result + encode_word(word, merges)
    return result

# cell: decode
def decode(ids, merges):
    ids = list(ids)
    i = 0
    while i < len(ids):
        if ids[i] >= 256:
            ids[i : i + 1] = merges[ids[i] - 256]
        else:
            i += 1
    return bytes([BYTES[i] for i in ids]).decode(errors="replace")

# cell: cross_entropy
def cross_entropy(logits, targets):
    total = 0.0
    rows = logits.reshape(-1, logits.shape[-1])
    for row, target in zip(rows, targets.reshape(-1)):
        row = row - row.max().detach()
        total = total + row.exp().sum().log() - row[target]
    return total / rows.shape[0]

# cell: next_token_probabilities
def one_row(z, temperature, top_k, top_p):
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if temperature == 0:
        return [1.0 if i == order[0] else 0.0 for i in range(len(z))]
    top = z[order[0]]
    p = [math.exp((x - top) / temperature) for x in z]
    total = sum(p)
    p = [x / total for x in p]
    if top_k is not None:
        kept = order[:top_k]
        total = sum(p[i] for i in kept)
        p = [x / total if i in kept else 0.0 for i, x in enumerate(p)]
    if top_p is not None:
        kept, total = [], 0.0
        for i in order:
            kept.append(i)
            total += p[i]
            if total >= top_p:
                break
        p = [x / total if i in kept else 0.0 for i, x in enumerate(p)]
    return p


def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    rows = logits.reshape(-1, logits.shape[-1]).tolist()
    rows = [one_row(row, temperature, top_k, top_p) for row in rows]
    return torch.tensor(rows, dtype=logits.dtype).reshape(logits.shape)

# cell: sample
from bisect import bisect_right
from itertools import accumulate


def sample(probabilities, uniform):
    ids = []
    rows = probabilities.reshape(-1, probabilities.shape[-1]).tolist()
    for row, u in zip(rows, uniform.reshape(-1).tolist()):
        i = bisect_right(list(accumulate(row)), u)
        while i == len(row) or row[i] == 0:
            i -= 1
        ids.append(i)
    return torch.tensor(ids).reshape(uniform.shape)

# cell: find_difference
def find_difference(merges):
    tokens = [decode([256 + n], merges) for n in range(len(merges))]
    for first in sorted(tokens, key=len):
        for second in sorted(tokens, key=len):
            for n in range(len(first) - 1, 0, -1):
                if n < len(second) and second.startswith(first[-n:]):
                    text = first[:-n] + second
                    if longest_match(text, merges) != encode(text, merges):
                        return text
    return None
