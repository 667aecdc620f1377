"""The part of a block that works on each token alone."""

import math

import torch
from torch import Tensor, nn


def gelu(x: Tensor) -> Tensor:
    """GELU in the tanh form that GPT-2 uses (Hendrycks and Gimpel 2016): x times a soft step.

    x: any shape. Returns the same shape and dtype.
    """
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


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
