"""DeltaNet as a layer: what a key held is erased before its new value is written."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.cache import RecurrentState
from llmcourse.layers.norm import RMSNorm
from llmcourse.layers.recurrent import new_state, remember
from llmcourse.ops import delta
from llmcourse.ops.common import require_heads


class DeltaNet(nn.Module):
    """The delta rule with H heads (Schlag et al. 2021; this form Yang et al. 2024).

    q, k = unit(SiLU(W x)), v = SiLU(W x), beta = sigmoid(W x), one for each head;
    S_t = S_t-1 + beta_t k_t (v_t - S_t-1^T k_t)^T, o_t = S_t^T q_t; then a norm for each head.
    width: D, the number of channels; each head works on D / H of them.
    num_heads: H, a divisor of D.
    negative_eigenvalues: beta up to 2 instead of 1 (Grazzi et al. 2024, arXiv:2411.12537).
    forward: x [B, T, D] -> [B, T, D]. With a `memory` (from `new_memory`), the T tokens follow
        those that it holds, and are added to it.
    """

    def __init__(
        self, width: int, num_heads: int, *, negative_eigenvalues: bool = False
    ) -> None:
        super().__init__()
        require_heads(num_heads, width)
        self.num_heads, self.negative_eigenvalues = num_heads, negative_eigenvalues
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.beta = nn.Linear(width, num_heads, bias=False)
        self.norm = RMSNorm(width // num_heads)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: RecurrentState | None = None) -> Tensor:
        o = remember(delta, *self.project(x), memory=memory)
        return self.out(self.norm(o).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k (of unit length) and v of x [B, T, D], each [B, T, H, D / H]; beta [B, T, H]."""
        y = F.silu(self.qkv(x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = y.unbind(-3)
        beta = torch.sigmoid(self.beta(x))
        if self.negative_eigenvalues:
            beta = 2 * beta
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, beta

    def new_memory(self, batch: int = 1) -> RecurrentState:
        """The empty page of `batch` sequences, [B, H, K, V] with K = V = D / H."""
        K = self.qkv.in_features // self.num_heads
        return new_state(self.qkv.weight, batch, self.num_heads, K, K)
