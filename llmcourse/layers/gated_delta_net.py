"""Gated DeltaNet as a layer: the page fades by a learned rate, then the delta rule writes."""

import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.cache import Cache, RecurrentState
from llmcourse.layers.gated import DecayGate, GatedMemory, HeadProjection, parts_of
from llmcourse.layers.norm import RMSNorm
from llmcourse.layers.recurrent import remember
from llmcourse.ops import gated_delta
from llmcourse.ops.common import require_count, require_heads


class GatedDeltaNet(GatedMemory):
    """The gated delta rule with H heads (Yang et al. 2024, arXiv:2412.06464, section 3.4).

    q, k = unit(SiLU(conv(W x))), q divided by sqrt(K), v = SiLU(conv(W x));
    beta = sigmoid(W x) and g = -exp(A_log) softplus(W x + dt_bias), one of each for a head;
    S' = exp(g_t) S_t-1, S_t = S' + beta_t k_t (v_t - S'^T k_t)^T, o_t = S_t^T q_t;
    y = W [RMSNorm(o) SiLU(W x)], the norm for each head.
    width: D, the number of channels.
    num_heads: H, a divisor of D unless both widths are given.
    key_width, value_width: K and V, channels of a head's keys and values; D / H by default.
    conv_size: tokens that the convolutions of q, k and v see; None: no convolutions.
    norm_eps: added to the mean square in the output norm.
    forward: x [B, T, D] -> [B, T, D]. With a `memory` (from `new_memory`), the T tokens follow
        those that it holds, and are added to it.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        conv_size: int | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        if key_width is None or value_width is None:
            require_heads(num_heads, width)
        H, K = num_heads, width // num_heads if key_width is None else key_width
        V = width // num_heads if value_width is None else value_width
        for name, size in {"num_heads": H, "key_width": K, "value_width": V}.items():
            require_count(name, size)
        self.num_heads, self.key_width, self.value_width = H, K, V
        self.conv_size = conv_size
        self.q = HeadProjection(width, H, K, conv_size)
        self.k = HeadProjection(width, H, K, conv_size)
        self.v = HeadProjection(width, H, V, conv_size)
        self.beta = nn.Linear(width, H, bias=False)
        self.decay = DecayGate(nn.Linear(width, H, bias=False), H, 1)
        self.output_gate = nn.Linear(width, H * V, bias=False)
        self.norm = RMSNorm(V, norm_eps)
        self.out = nn.Linear(H * V, width, bias=False)

    def forward(self, x: Tensor, memory: Cache | None = None) -> Tensor:
        *windows, page = parts_of(memory, self.memory_shapes(x.shape[0]))
        o = remember(gated_delta, *self.project(x, windows), memory=page)  # [B, T, H, V]
        gate = self.output_gate(x).unflatten(-1, (self.num_heads, -1)).to(o.dtype)
        o = self.norm(o) * F.silu(gate)
        return self.out(o.flatten(2).to(x.dtype))

    def project(
        self, x: Tensor, windows: list[RecurrentState | None] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the rule takes, of x [B, T, D]: q, k [B, T, H, K], v, g and beta [B, T, H]."""
        q, k, v, beta = self.write_and_read(x, windows or [None] * 3)
        return q, k, v, self.decay(x).squeeze(-1), beta
