"""Joins by str.replace and in order of the merges, scales the stretches, tries token + token."""

# cell: train_bpe
from collections import Counter


def train_bpe(text, num_merges):
    rows = ["".join(map(chr, row)) for row in words(text)]
    merges = []
    for new in range(256, 256 + num_merges):
        counts = Counter(pair for row in rows for pair in pairwise(row))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append([ord(symbol) for symbol in best])
        rows = [row.replace("".join(best), chr(new)) for row in rows]
    return merges


# cell: encode
def encode(text, merges):
    ids = []
    for row in words(text):
        symbols = "".join(map(chr, row))
        for new, (left, right) in enumerate(merges, 256):
            symbols = symbols.replace(chr(left) + chr(right), chr(new))
        ids += map(ord, symbols)
    return ids


# cell: decode
def decode(ids, merges):
    def spell(i):
        return bytes([BYTES[i]]) if i < 256 else b"".join(map(spell, merges[i - 256]))

    return b"".join(map(spell, ids)).decode(errors="replace")


# cell: cross_entropy
def cross_entropy(logits, targets):
    return -logits.log_softmax(-1).take_along_dim(targets.unsqueeze(-1), -1).mean()


# cell: next_token_probabilities
def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    p = (
        F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
        if temperature == 0
        else (logits / temperature).softmax(-1)
    )
    order = logits.argsort(dim=-1, descending=True, stable=True)
    p = p.gather(-1, order)
    if top_k is not None:
        p[..., top_k:] = 0
        p /= p.sum(-1, keepdim=True)
    if top_p is not None:
        kept = (p.cumsum(-1) < top_p).sum(-1, keepdim=True) + 1
        p = torch.where(torch.arange(p.shape[-1]) < kept, p, 0)
        p /= p.sum(-1, keepdim=True)
    return torch.empty_like(p).scatter(-1, order, p)


# cell: sample
def sample(probabilities, uniform):
    ends = probabilities.cumsum(-1)
    ends = ends / ends[..., -1:]
    return (ends <= uniform.unsqueeze(-1)).sum(-1)


# cell: find_difference
def find_difference(merges):
    tokens = [chr(byte) for byte in BYTES]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    letters = [chr(i) for i in range(ord("a"), ord("z") + 1)]
    # The token that crosses the longer one's end joins a token that begins just there.
    for first in tokens[256:]:
        for second in letters + tokens[256:]:
            text = first + second
            if encode(text, merges) != longest_match(text, merges):
                return text
    return None
