"""Space reserved and doubled, matrix products, pieces of the window as a whole."""


# cell: KVCache
class KVCache:
    def __init__(self):
        self.length = 0
        self.bytes = 0
        self.room = 0

    def append(self, k, v):
        end = self.length + k.shape[1]
        if end > self.room:
            self.grow(k, v, max(end, 2 * self.room))
        self.k[:, self.length : end] = k
        self.v[:, self.length : end] = v
        self.length = end
        held = self.k[:, :end], self.v[:, :end]
        self.bytes = sum(x.numel() * x.element_size() for x in held)
        return held

    def grow(self, k, v, room):
        new_k = torch.empty(k.shape[0], room, *k.shape[2:], dtype=k.dtype)
        new_v = torch.empty(v.shape[0], room, *v.shape[2:], dtype=v.dtype)
        if self.length:
            new_k[:, : self.length] = self.k[:, : self.length]
            new_v[:, : self.length] = self.v[:, : self.length]
        self.k, self.v, self.room = new_k, new_v, room


# cell: cached_attention
def cached_attention(q, k, v, cache):
    keys, values = (x.transpose(1, 2) for x in cache.append(k, v))
    T, S = q.shape[1], keys.shape[2]
    scores = q.transpose(1, 2) @ keys.transpose(2, 3) * q.shape[-1] ** -0.5
    if T > 1:
        at = torch.arange(S - T, S)[:, None]
        scores = scores + torch.where(torch.arange(S) <= at, 0.0, float("-inf")).to(q.dtype)
    return (scores.softmax(dim=-1) @ values).transpose(1, 2).contiguous()


# cell: generate
def generate(params, ids, num_tokens):
    B, T = ids.shape
    caches = [KVCache() for _ in range(len(params["layers"]))]
    text = torch.zeros(B, T + num_tokens, dtype=torch.int64)
    text[:, :T] = ids
    start = 0
    for end in range(T, T + num_tokens):
        positions = torch.arange(start, end)
        x = params["token_embedding"][text[:, start:end]]
        x = x + params["position_embedding"][positions]
        for layer, cache in zip(params["layers"], caches):
            x = finish(
                x, cached_attention(*project(x, layer, params["num_heads"]), cache), layer
            )
        text[:, end] = logits(x[:, -1:], params)[:, 0].argmax(-1)
        start = end
    return text


# cell: decode_flops
def decode_flops(config, context, cached):
    D, M, H = config["width"], config["mlp_width"], config["num_heads"]
    K, V = config["key_width"], config["value_width"]
    dense = config["num_layers"] * (2 * D * H * (2 * K + 2 * V) + 4 * D * M)
    head = 2 * D * config["vocab_size"]
    read = config["num_layers"] * 2 * H * (K + V)
    if cached:
        return dense + head + context * read
    return context * (dense + head) + context * (context + 1) // 2 * read


# cell: SlidingWindowCache
class SlidingWindowCache:
    def __init__(self, window):
        self.window = window
        self.seen = 0
        self.length = 0

    def attend(self, q, k, v):
        W, T = self.window, q.shape[1]
        if self.seen == 0:
            self.k = torch.zeros(k.shape[0], W, *k.shape[2:], dtype=k.dtype)
            self.v = torch.zeros(v.shape[0], W, *v.shape[2:], dtype=v.dtype)
        old = torch.arange(self.seen - self.length, self.seen)  # positions, oldest first
        new = torch.arange(self.seen, self.seen + T)
        keys = torch.cat([self.k[:, old % W], k], dim=1)
        values = torch.cat([self.v[:, old % W], v], dim=1)
        distance = new[:, None] - torch.cat([old, new])[None, :]
        scores = torch.einsum("bthk,bshk->bhts", q, keys) / k.shape[-1] ** 0.5
        scores = scores.masked_fill((distance < 0) | (distance >= W), float("-inf"))
        kept = new[-W:]
        self.k[:, kept % W] = k[:, -W:]
        self.v[:, kept % W] = v[:, -W:]
        self.seen += T
        self.length = min(self.seen, W)
        return torch.einsum("bhts,bshv->bthv", scores.softmax(dim=-1), values)
