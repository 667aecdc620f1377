"""torch.topk and in-place work on copies; the loss in pieces; stretches by their two ends."""

# cell: train_bpe
import heapq


def train_bpe(text, num_merges):
    rows = [list(word) for word in words(text) if len(word) > 1]
    merges = []
    while rows and len(merges) < num_merges:
        counts = {}
        for row in rows:
            for pair in zip(row[:-1], row[1:]):
                counts[pair] = counts.get(pair, 0) - 1
        left, right = heapq.nsmallest(1, counts, key=lambda p: (counts[p], p))[0]
        new = 256 + len(merges)
        for row in rows:
            for i in range(len(row) - 1):
                if row[i] == left and row[i + 1] == right:
                    row[i], row[i + 1] = new, None
            row[:] = [x for x in row if x is not None]
        rows = [row for row in rows if len(row) > 1]
        merges.append([left, right])
    return merges

# cell: cross_entropy
def cross_entropy(logits, targets):
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    chosen = torch.take_along_dim(shifted, targets.unsqueeze(-1), dim=-1).squeeze(-1)
    return torch.mean(torch.log(torch.sum(torch.exp(shifted), dim=-1)) - chosen)

# cell: next_token_probabilities
def _largest(x, k):
    """Which k entries of each row are the largest, the lower ids on ties."""
    border = x.topk(k, dim=-1).values[..., -1:]
    above, at = x > border, x == border
    room = k - above.sum(dim=-1, keepdim=True)
    return above | (at & (at.cumsum(dim=-1) <= room))


def next_token_probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    V = logits.shape[-1]
    if temperature == 0:
        best = logits.max(dim=-1, keepdim=True).values
        first = ((logits == best).cumsum(dim=-1) == 0).sum(dim=-1)
        return torch.nn.functional.one_hot(first, V).to(logits.dtype)
    z = logits.clone()
    z /= temperature
    if top_k is not None:
        z[~_largest(logits, min(top_k, V))] = -torch.inf
    p = z.softmax(dim=-1)
    if top_p is None:
        return p
    rows = p.view(-1, V).clone()
    for row, scores in zip(rows, logits.reshape(-1, V)):
        for k in range(1, V + 1):
            kept = _largest(scores, k)
            if k == V or row[kept].sum() >= top_p:
                row[~kept] = 0
                row /= row.sum()
                break
    return rows.view(p.shape)

# cell: sample
def sample(probabilities, uniform):
    ends = probabilities.cumsum(dim=-1)
    begins = torch.cat([torch.zeros_like(ends[..., :1]), ends[..., :-1]], dim=-1)
    u = uniform.unsqueeze(-1)
    inside = (begins <= u) & (u < ends)
    possible = probabilities > 0
    ids = torch.arange(probabilities.shape[-1]).expand(probabilities.shape)
    last = ids.masked_fill(~possible, -1).max(dim=-1).values
    return torch.where(inside.any(dim=-1), inside.int().argmax(dim=-1), last)
