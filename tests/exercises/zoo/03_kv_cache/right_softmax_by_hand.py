"""Exponentials written out, big pieces cut into single tokens, the window kept in order."""


# cell: KVCache
class KVCache:
    def __init__(self):
        self.held, self.length, self.bytes = None, 0, 0

    def append(self, k, v):
        both = torch.cat([k, v], dim=-1)  # one tensor: [B, T, H, K + V]
        self.width = k.shape[-1]
        self.held = both if self.held is None else torch.cat((self.held, both), 1)
        self.length += k.shape[1]
        self.bytes += both.nbytes
        return self.held[..., : self.width], self.held[..., self.width :]


# cell: cached_attention
def cached_attention(q, k, v, cache):
    outputs = []
    for t in range(q.shape[1]):  # one token at a time needs no mask
        keys, values = cache.append(k[:, t : t + 1], v[:, t : t + 1])
        scores = torch.einsum("bhk,bshk->bhs", q[:, t] / q.shape[-1] ** 0.5, keys)
        e = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        outputs.append(torch.einsum("bhs,bshv->bhv", e, values) / e.sum(-1)[..., None])
    return torch.stack(outputs, dim=1)


# cell: generate
def generate(params, ids, num_tokens):
    caches = [KVCache() for _ in params["layers"]]
    start, new = 0, ids
    for _ in range(num_tokens):
        end = start + new.shape[1]
        x = params["token_embedding"][new] + params["position_embedding"][start:end]
        for layer, cache in zip(params["layers"], caches):
            q, k, v = project(x, layer, params["num_heads"])
            x = finish(x, cached_attention(q, k, v, cache), layer)
        new = logits(x, params)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
        start = end
    return ids


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
        self.window, self.position, self.recent_k, self.recent_v = window, 0, None, None

    @property
    def length(self):
        return 0 if self.recent_k is None else self.recent_k.shape[1]

    def attend(self, q, k, v):
        if self.recent_k is None:
            self.recent_k, self.recent_v = k[:, :0], v[:, :0]
        every_k = torch.cat([self.recent_k, k], dim=1)
        every_v = torch.cat([self.recent_v, v], dim=1)
        outputs = []
        for t in range(q.shape[1]):
            end = self.length + t + 1
            start = max(0, end - self.window)
            scores = torch.einsum("bhk,bshk->bsh", q[:, t], every_k[:, start:end])
            scores = scores / q.shape[-1] ** 0.5
            e = (scores - scores.amax(dim=1, keepdim=True)).exp()
            p = e / e.sum(dim=1, keepdim=True)
            outputs.append((p[..., None] * every_v[:, start:end]).sum(dim=1))
        self.recent_k = every_k[:, -self.window :].clone()
        self.recent_v = every_v[:, -self.window :].clone()
        self.position += q.shape[1]
        self.k, self.v = self.as_ring(self.recent_k), self.as_ring(self.recent_v)
        return torch.stack(outputs, dim=1)

    def as_ring(self, recent):
        B, n, H, C = recent.shape
        padded = torch.cat([recent, recent.new_zeros(B, self.window - n, H, C)], dim=1)
        return padded.roll((self.position - n) % self.window, dims=1)
