"""length is the number of tokens of all sequences together."""
# fails: KVCache-check, generate-check


# cell: KVCache
class KVCache:
    def __init__(self):
        self.k = self.v = None

    def append(self, k, v):
        if self.k is None:
            self.k, self.v = k.clone(), v.clone()
        else:
            self.k = torch.cat([self.k, k], dim=1)
            self.v = torch.cat([self.v, v], dim=1)
        return self.k, self.v

    @property
    def length(self):
        return 0 if self.k is None else self.k.shape[0] * self.k.shape[1]

    @property
    def bytes(self):
        return 0 if self.k is None else self.k.nbytes + self.v.nbytes


# cell: generate
def generate(params, ids, num_tokens):
    caches = [KVCache() for _ in params["layers"]]
    new = ids
    for _ in range(num_tokens):
        start = caches[0].length
        end = start + new.shape[1]
        x = params["token_embedding"][new] + params["position_embedding"][start:end]
        for layer, cache in zip(params["layers"], caches):
            q, k, v = project(x, layer, params["num_heads"])
            x = finish(x, cached_attention(q, k, v, cache), layer)
        new = logits(x, params)[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
    return ids
