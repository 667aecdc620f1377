"""The part of a block in which tokens read from one another."""

from torch import Tensor, nn

from llmcourse.cache import KVCache
from llmcourse.ops import softmax
from llmcourse.ops.common import require, require_count, require_heads


class MultiHeadAttention(nn.Module):
    """Causal softmax attention with H heads side by side, as in GPT-2.

    width: D, the number of channels; each head works on D / H of them.
    num_heads: H, a divisor of D.
    forward: x [B, T, D] -> [B, T, D]. With a `memory`, the T tokens follow those that it holds:
        their keys and values are appended to it, and the queries read all of them.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        require_heads(num_heads, width)
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: KVCache | None = None) -> Tensor:
        q, k, v = self.project(x)
        if memory is not None:
            k, v = (held.to(q.dtype) for held in _checked(memory).append(k, v))
        y = softmax.parallel(q, k, v)  # [B, T, H, D / H]
        return self.out(y.flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x [B, T, D], each [B, T, H, D / H]."""
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)) for y in self.qkv(x).chunk(3, dim=-1))
        return q, k, v


class GroupedQueryAttention(nn.Module):
    """Causal softmax attention in which groups of query heads share one key and value head.

    Ainslie et al. 2023 (arXiv:2305.13245); one key head for all is multi-query attention
    (Shazeer 2019, arXiv:1911.02150). A cache holds Hk heads instead of H.
    width: D, the number of channels.
    num_heads: H, the heads of the queries.
    num_kv_heads: Hk, the heads of the keys and values, a divisor of H; each serves H / Hk
        neighbouring query heads.
    head_width: K, channels of a head, D / H by default.
    forward: x [B, T, D] -> [B, T, D]. With a `memory` (from `new_memory`), the T tokens follow
        those that it holds, and are added to it.
    """

    def __init__(
        self, width: int, num_heads: int, num_kv_heads: int, head_width: int | None = None
    ) -> None:
        super().__init__()
        for name, size in {"num_heads": num_heads, "num_kv_heads": num_kv_heads}.items():
            require_count(name, size)
        divides = num_heads % num_kv_heads == 0
        require(divides, "num_kv_heads", num_kv_heads, f"a divisor of num_heads = {num_heads}")
        if head_width is None:
            needs = f"a divisor of width = {width}, or a head_width"
            require(width % num_heads == 0, "num_heads", num_heads, needs)
            head_width = width // num_heads
        require_count("head_width", head_width)
        self.head_width, self.num_kv_heads = head_width, num_kv_heads
        self.query = nn.Linear(width, num_heads * head_width, bias=False)
        self.key = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.value = nn.Linear(width, num_kv_heads * head_width, bias=False)
        self.out = nn.Linear(num_heads * head_width, width, bias=False)

    def forward(self, x: Tensor, memory: KVCache | None = None) -> Tensor:
        q, k, v = self.project(x)
        if memory is not None:
            k, v = (held.to(q.dtype) for held in _checked(memory).append(k, v))
        y = softmax.parallel(q, k, v)  # [B, T, H, K]
        return self.out(y.flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, H, K], k and v [B, T, Hk, K] of x [B, T, D]."""
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (y.unflatten(-1, (-1, self.head_width)) for y in parts)
        return q, k, v

    def new_memory(self, batch: int = 1) -> KVCache:
        """The empty cache of `batch` sequences: keys and values of every token to come."""
        K, weight = self.head_width, self.key.weight
        dtype, device = weight.dtype, weight.device
        return KVCache(batch, self.num_kv_heads, K, K, dtype=dtype, device=device)


def _checked(memory: KVCache) -> KVCache:
    fits = isinstance(memory, KVCache)
    require(fits, "memory", type(memory).__name__, "a KVCache")
    return memory
