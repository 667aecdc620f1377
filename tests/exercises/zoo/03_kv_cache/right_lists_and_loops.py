"""Pieces in lists, every query by itself, every matrix counted by itself."""


# cell: KVCache
class KVCache:
    def __init__(self):
        self.k, self.v = [], []

    def append(self, k, v):
        self.k.append(k.clone())
        self.v.append(v.clone())
        return torch.cat(self.k, dim=1), torch.cat(self.v, dim=1)

    @property
    def length(self):
        return sum(k.shape[1] for k in self.k)

    @property
    def bytes(self):
        return sum(x.numel() * x.element_size() for x in self.k + self.v)


# cell: cached_attention
def cached_attention(q, k, v, cache):
    before = cache.length
    keys, values = cache.append(k, v)
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            for h in range(q.shape[2]):
                seen = before + t + 1
                scores = keys[b, :seen, h] @ q[b, t, h] / q.shape[3] ** 0.5
                out[b, t, h] = torch.softmax(scores, dim=0) @ values[b, :seen, h]
    return out


# cell: generate
def run(params, caches, ids, start):
    x = params["token_embedding"][ids]
    x = x + params["position_embedding"][start : start + ids.shape[1]]
    for i, layer in enumerate(params["layers"]):
        q, k, v = project(x, layer, params["num_heads"])
        x = finish(x, cached_attention(q, k, v, caches[i]), layer)
    return logits(x, params)[:, -1].argmax(dim=-1)


def generate(params, ids, num_tokens):
    caches = [KVCache() for _ in params["layers"]]
    new = [run(params, caches, ids, 0)]  # prefill
    while len(new) < num_tokens:  # decode
        new.append(run(params, caches, new[-1][:, None], ids.shape[1] + len(new) - 1))
    return torch.cat([ids, torch.stack(new, dim=1)], dim=1)


# cell: decode_flops
def decode_flops(config, context, cached):
    total = 0
    for t in [context] if cached else range(1, context + 1):
        D, H = config["width"], config["num_heads"]
        K, V = config["key_width"], config["value_width"]
        layer = 2 * D * H * K + 2 * D * H * K + 2 * D * H * V + 2 * H * V * D
        layer += H * (2 * t * K + 2 * t * V)
        layer += 2 * D * config["mlp_width"] * 2
        total += config["num_layers"] * layer + 2 * D * config["vocab_size"]
    return total


# cell: SlidingWindowCache
class SlidingWindowCache:
    def __init__(self, window):
        self.window = window
        self.tokens = []  # (position, k, v), oldest first
        self.position = 0

    @property
    def length(self):
        return len(self.tokens)

    def attend(self, q, k, v):
        outputs = []
        for t in range(q.shape[1]):
            self.tokens.append((self.position, k[:, t].clone(), v[:, t].clone()))
            self.position += 1
            self.tokens = self.tokens[-self.window :]
            keys = torch.stack([key for _, key, _ in self.tokens], dim=-1)
            values = torch.stack([value for _, _, value in self.tokens], dim=-1)
            scores = (q[:, t].unsqueeze(-1) * keys).sum(dim=2) / q.shape[-1] ** 0.5
            outputs.append((values * scores.softmax(dim=-1).unsqueeze(2)).sum(dim=-1))
        return torch.stack(outputs, dim=1)

    @property
    def k(self):
        return self.ring(1)

    @property
    def v(self):
        return self.ring(2)

    def ring(self, which):
        places = [torch.zeros_like(self.tokens[0][which])] * self.window
        for token in self.tokens:
            places[token[0] % self.window] = token[which]
        return torch.stack(places, dim=1)
