"""Counts each distinct word once, applies merges in order, ranks without sorting, bisects."""

# cell: train_bpe
from collections import Counter, defaultdict


def _merge(row, pair, new):
    out, i = [], 0
    while i < len(row):
        if i + 1 < len(row) and (row[i], row[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(row[i])
            i += 1
    return tuple(out)


def train_bpe(text, num_merges):
    vocab = Counter(tuple(word) for word in words(text))
    where = defaultdict(set)
    counts = Counter()
    for word, times in vocab.items():
        for pair in zip(word, word[1:]):
            counts[pair] += times
            where[pair].add(word)
    merges = []
    while len(merges) < num_merges:
        counts = +counts
        if not counts:
            break
        most = max(counts.values())
        best = min(pair for pair, count in counts.items() if count == most)
        new = 256 + len(merges)
        for word in list(where[best]):
            if word not in vocab:
                continue
            times = vocab.pop(word)
            for pair in zip(word, word[1:]):
                counts[pair] -= times
            word = _merge(word, best, new)
            vocab[word] += times
            for pair in zip(word, word[1:]):
                counts[pair] += times
                where[pair].add(word)
        merges.append(best)
    return merges

# cell: encode
def encode(text, merges):
    ids = []
    cache = {}
    for word in map(tuple, words(text)):
        if word not in cache:
            row = word
            for n, (left, right) in enumerate(merges):
                if left in row and right in row:
                    row = _merge(row, (left, right), 256 + n)
            cache[word] = row
        ids.extend(cache[word])
    return ids

# cell: decode
def decode(ids, merges):
    def spell(i):
        if i < 256:
            return bytes([BYTES[i]])
        left, right = merges[i - 256]
        return spell(left) + spell(right)

    out = bytearray()
    for i in ids:
        out += spell(i)
    return str(out, "utf-8", "replace")

# cell: cross_entropy
def cross_entropy(logits, targets):
    V = logits.shape[-1]
    logp = torch.log_softmax(logits.reshape(-1, V), dim=-1)
    return -logp[torch.arange(len(logp)), targets.reshape(-1)].mean()

# cell: next_token_probabilities
def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    V = logits.shape[-1]
    ids = torch.arange(V)
    x, y = logits[..., None, :], logits[..., :, None]
    ahead = (x > y) | ((x == y) & (ids[None, :] < ids[:, None]))  # [..., V, V]
    if temperature == 0:
        return (ahead.sum(-1) == 0).to(logits.dtype)
    keep = torch.ones_like(logits, dtype=torch.bool)
    x = logits / temperature
    if top_k is not None:
        keep = ahead.sum(-1) < top_k
        x = x.masked_fill(~keep, -math.inf)
    p = torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
    if top_p is not None:
        before = (ahead * p[..., None, :]).sum(-1)
        p = p * (before < top_p)
        p = p / p.sum(-1, keepdim=True)
    return p

# cell: sample
def sample(probabilities, uniform):
    c = probabilities.cumsum(-1)
    ids = torch.searchsorted(c, uniform[..., None].contiguous(), right=True)[..., 0]
    V = probabilities.shape[-1]
    last = V - 1 - (probabilities.flip(-1) > 0).int().argmax(-1)
    return torch.minimum(ids, last)

# cell: find_difference
def find_difference(merges):
    spelled = [bytes([byte]) for byte in BYTES]
    for left, right in merges:
        spelled.append(spelled[left] + spelled[right])
    beginnings = {}
    for token in spelled[256:]:
        for i in range(1, len(token)):
            beginnings.setdefault(token[:i], []).append(token[i:])
    for token in spelled[256:]:
        for i in range(1, len(token)):
            for rest in beginnings.get(token[i:], []):
                text = str(token + rest, "utf-8")
                if encode(text, merges) != longest_match(text, merges):
                    return text
