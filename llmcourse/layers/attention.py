"""The part of a block in which tokens read from one another."""

from torch import Tensor, nn

from llmcourse.cache import KVCache
from llmcourse.ops import softmax
from llmcourse.ops.common import require


class MultiHeadAttention(nn.Module):
    """Causal softmax attention with H heads side by side, as in GPT-2.

    width: D, the number of channels; each head works on D / H of them.
    num_heads: H, a divisor of D.
    forward: x [B, T, D] -> [B, T, D]. With a `memory`, the T tokens follow those that it holds:
        their keys and values are appended to it, and the queries read all of them.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        require(width % num_heads == 0, "num_heads", num_heads, f"a divisor of width = {width}")
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: KVCache | None = None) -> Tensor:
        q, k, v = self.project(x)
        if memory is not None:
            k, v = (held.to(q.dtype) for held in memory.append(k, v))
        y = softmax.parallel(q, k, v)  # [B, T, H, D / H]
        return self.out(y.flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x [B, T, D], each [B, T, H, D / H]."""
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)) for y in self.qkv(x).chunk(3, dim=-1))
        return q, k, v
