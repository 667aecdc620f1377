"""Reserved space has torch's default dtype."""
# fails: KVCache-check, cached_attention-check, generate-check


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
        new_k = torch.empty(k.shape[0], room, *k.shape[2:])
        new_v = torch.empty(v.shape[0], room, *v.shape[2:])
        if self.length:
            new_k[:, : self.length] = self.k[:, : self.length]
            new_v[:, : self.length] = self.v[:, : self.length]
        self.k, self.v, self.room = new_k, new_v, room
