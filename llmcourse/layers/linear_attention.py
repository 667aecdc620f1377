"""Linear attention as a layer: softmax's place taken by one page that is added to."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.cache import RecurrentState
from llmcourse.layers.norm import RMSNorm
from llmcourse.layers.recurrent import new_state, remember
from llmcourse.ops import linear
from llmcourse.ops.common import require_heads


def feature_map(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1, always positive (Katharopoulos et al. 2020, equation 7).

    x: any shape. Returns the same shape and dtype. Written out, because elu rounds to -1 where
    e^x is still a number: below -17 in float32.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


class LinearAttention(nn.Module):
    """Causal linear attention with H heads (Katharopoulos et al. 2020, arXiv:2006.16236).

    o_t = S_t^T phi(q_t), S_t = S_t-1 + phi(k_t) v_t^T; then a norm for each head.
    width: D, the number of channels; each head works on D / H of them.
    num_heads: H, a divisor of D.
    normalise: divide o_t by phi(q_t) . sum of all phi(k_i), their equation 12: a weighted mean.
    forward: x [B, T, D] -> [B, T, D]. With a `memory` (from `new_memory`), the T tokens follow
        those that it holds, and are added to it.
    """

    def __init__(self, width: int, num_heads: int, *, normalise: bool = False) -> None:
        super().__init__()
        require_heads(num_heads, width)
        self.num_heads, self.normalise = num_heads, normalise
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.norm = RMSNorm(width // num_heads)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: RecurrentState | None = None) -> Tensor:
        q, k, v = self.project(x)
        if self.normalise:
            v = F.pad(v, (0, 1), value=1.0)  # one more channel sums the keys: v = 1
        o = remember(linear, q, k, v, memory=memory)
        if self.normalise:
            o = o[..., :-1] / o[..., -1:]
        return self.out(self.norm(o).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """phi(q), phi(k) and v of x [B, T, D], each [B, T, H, D / H]."""
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)) for y in self.qkv(x).chunk(3, dim=-1))
        return feature_map(q), feature_map(k), v

    def new_memory(self, batch: int = 1) -> RecurrentState:
        """The empty page of `batch` sequences, [B, H, K, V]; V + 1 channels if normalised."""
        K = self.qkv.in_features // self.num_heads
        return new_state(self.qkv.weight, batch, self.num_heads, K, K + self.normalise)
