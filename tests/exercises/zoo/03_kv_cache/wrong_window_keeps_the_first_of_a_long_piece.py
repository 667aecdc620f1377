"""Of a piece longer than the window, the buffer keeps the first tokens, not the last."""
# fails: SlidingWindowCache-check


# cell: SlidingWindowCache
class SlidingWindowCache:
    def __init__(self, window):
        self.window, self.seen = window, 0

    @property
    def length(self):
        return min(self.seen, self.window)

    def attend(self, q, k, v):
        T, W = q.shape[1], self.window
        if self.seen == 0:
            self.k = k.new_zeros(len(k), W, *k.shape[2:])
            self.v = v.new_zeros(len(v), W, *v.shape[2:])
        old = torch.arange(self.seen - self.length, self.seen) % W
        keys, values = torch.cat([self.k[:, old], k], 1), torch.cat([self.v[:, old], v], 1)
        S = keys.shape[1]
        seen = torch.ones(T, S, dtype=torch.bool).tril(S - T).triu(S - T - W + 1)
        scores = torch.einsum("bthk,bshk->bhts", q, keys) / q.shape[-1] ** 0.5
        p = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        places = torch.arange(self.seen, self.seen + min(T, W)) % W
        self.k[:, places], self.v[:, places] = k[:, :W], v[:, :W]
        self.seen += T
        return torch.einsum("bhts,bshv->bthv", p, values)
