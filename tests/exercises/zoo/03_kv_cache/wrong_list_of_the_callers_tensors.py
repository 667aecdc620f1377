"""Every piece is stored without a copy."""
# fails: KVCache-check


# cell: KVCache
class KVCache:
    def __init__(self):
        self.k, self.v = [], []

    def append(self, k, v):
        self.k.append(k)
        self.v.append(v)
        return torch.cat(self.k, dim=1), torch.cat(self.v, dim=1)

    @property
    def length(self):
        return sum(k.shape[1] for k in self.k)

    @property
    def bytes(self):
        return sum(x.numel() * x.element_size() for x in self.k + self.v)
