"""Kimi Delta Attention as a layer: every channel of a key fades at a rate of its own."""

from typing import Literal

import torch
from torch import Tensor, nn

from llmcourse.cache import Cache, RecurrentState
from llmcourse.layers.gated import (
    DecayGate,
    GatedMemory,
    HeadProjection,
    low_rank,
    parts_of,
)
from llmcourse.layers.norm import RMSNorm
from llmcourse.layers.recurrent import remember
from llmcourse.ops import kda
from llmcourse.ops.common import require, require_count

GATES = ("softplus", "bounded")


class KimiDeltaAttention(GatedMemory):
    """KDA with H heads (Kimi Team 2025, arXiv:2510.26692; for K3 2026, arXiv:2607.24653).

    q, k = unit(SiLU(conv(W x))), q divided by sqrt(K), v = SiLU(conv(W x));
    beta = sigmoid(W x), one for each head; f = W_up W_down x + dt_bias, one for each channel;
    g = -exp(A_log) softplus(f), or g = lower_bound sigmoid(exp(A_log) f);
    S' = Diag(exp(g_t)) S_t-1, S_t = S' + beta_t k_t (v_t - S'^T k_t)^T, o_t = S_t^T q_t;
    y = W [RMSNorm(o) sigmoid(W_gate x)], the norm for each head.
    width: D, the number of channels.
    num_heads, head_width: H heads, K channels each for keys and values; H K need not be D.
    gate_rank: channels between the two matrices of the decay gate.
    output_gate_rank: the same for the output gate, as in Kimi Linear; None: one full matrix, as
        in Kimi K3.
    gate: "softplus" as in Kimi Linear, or "bounded" as in Kimi K3.
    lower_bound: the fastest decay of the bounded gate, in log space, below 0.
    conv_size: tokens that the convolutions of q, k and v see; None: no convolutions.
    norm_eps: added to the mean square in the output norm.
    forward: x [B, T, D] -> [B, T, D]. With a `memory` (from `new_memory`), the T tokens follow
        those that it holds, and are added to it.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        head_width: int,
        *,
        gate_rank: int,
        output_gate_rank: int | None = None,
        gate: Literal["softplus", "bounded"] = "softplus",
        lower_bound: float = -5.0,
        conv_size: int | None = 4,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        counts = {"num_heads": num_heads, "head_width": head_width, "gate_rank": gate_rank}
        for name, size in counts.items():
            require_count(name, size)
        require(gate in GATES, "gate", repr(gate), f"one of {GATES}")
        H, K, inner = num_heads, head_width, num_heads * head_width
        self.num_heads, self.key_width, self.value_width = H, K, K
        self.conv_size = conv_size
        self.q, self.k, self.v = (HeadProjection(width, H, K, conv_size) for _ in range(3))
        self.beta = nn.Linear(width, H, bias=False)
        bound = lower_bound if gate == "bounded" else None
        self.decay = DecayGate(low_rank(width, gate_rank, inner), H, K, bound)
        self.output_gate: nn.Module
        if output_gate_rank is None:
            self.output_gate = nn.Linear(width, inner, bias=False)
        else:
            require_count("output_gate_rank", output_gate_rank)
            self.output_gate = low_rank(width, output_gate_rank, inner)
        self.norm = RMSNorm(K, norm_eps)
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, memory: Cache | None = None) -> Tensor:
        *windows, page = parts_of(memory, self.memory_shapes(x.shape[0]))
        o = remember(kda, *self.project(x, windows), memory=page)  # [B, T, H, K]
        gate = self.output_gate(x).unflatten(-1, (self.num_heads, -1)).to(o.dtype)
        o = self.norm(o) * torch.sigmoid(gate)
        return self.out(o.flatten(2).to(x.dtype))

    def project(
        self, x: Tensor, windows: list[RecurrentState | None] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the rule takes, of x [B, T, D]: q, k, v, g [B, T, H, K] and beta [B, T, H]."""
        q, k, v, beta = self.write_and_read(x, windows or [None] * 3)
        return q, k, v, self.decay(x), beta
