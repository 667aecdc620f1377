"""The part of a block that works on each token alone."""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.ops.common import require_number

GatedActivation = Callable[[Tensor, Tensor], Tensor]  # (gate, up) -> hidden, of one shape


def gelu(x: Tensor) -> Tensor:
    """GELU in the tanh form that GPT-2 uses (Hendrycks and Gimpel 2016): x times a soft step.

    x: any shape. Returns the same shape and dtype.
    """
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) * up: one half decides how much of the other passes (Shazeer 2020,
    arXiv:2002.05202, equation 5).

    gate, up: of one shape. Returns the same shape and dtype.
    """
    return F.silu(gate) * up


def situ(gate: Tensor, up: Tensor, beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:
    """SwiGLU with both halves bounded by tanh, as in Kimi K3 (arXiv:2607.24653).

    beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta): near zero it is
    SwiGLU, and far from it never beyond beta * linear_beta.
    gate, up: of one shape. Returns the same shape and dtype.
    """
    bounded = linear_beta * torch.tanh(up / linear_beta)
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * bounded


class MLP(nn.Module):
    """Widen, bend, narrow: D -> 4 D -> D, the same for every token.

    width: D, the number of channels.
    hidden: channels in the middle, 4 D by default.
    forward: x [..., D] -> [..., D].
    """

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


class GatedMLP(nn.Module):
    """Two views of a token, one gating the other, then back: D -> 2 of F -> D, no biases.

    width: D, the number of channels.
    hidden: F, channels in the middle.
    activation: joins gate and up, each [..., F], into [..., F].
    forward: x [..., D] -> [..., D].
    """

    def __init__(self, width: int, hidden: int, activation: GatedActivation) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x), self.up(x)))


class SwiGLU(GatedMLP):
    """The gated MLP of Kimi Linear and most models since 2020: see `swiglu`, `GatedMLP`."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, swiglu)


class SiTUGLU(GatedMLP):
    """The gated MLP of Kimi K3: see `situ`, `GatedMLP`.

    beta, linear_beta: bounds of the two halves, finite and above 0.
    """

    def __init__(
        self, width: int, hidden: int, beta: float = 4.0, linear_beta: float = 25.0
    ) -> None:
        for name, bound in {"beta": beta, "linear_beta": linear_beta}.items():
            require_number(name, bound, lambda x: 0 < x < math.inf, "a finite number above 0")
        super().__init__(width, hidden, partial(situ, beta=beta, linear_beta=linear_beta))
