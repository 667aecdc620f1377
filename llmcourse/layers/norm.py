"""Normalisation: every token's vector brought to one size, so that depth stays trainable."""

import torch
from torch import Tensor, nn

from llmcourse.ops.common import compute_dtype


class LayerNorm(nn.Module):
    """Zero mean and unit variance over the channels, then a learned scale and shift (Ba 2016).

    width: D, the number of channels.
    eps: added to the variance, so that a constant vector does not divide by zero.
    forward: x [..., D] -> [..., D] in x's dtype; computed in float32 unless x is float64.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(compute_dtype(x))
        y = y - y.mean(dim=-1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return (y * self.weight + self.bias).to(x.dtype)


class RMSNorm(nn.Module):
    """Unit mean square over the channels, then a learned scale (Zhang and Sennrich 2019).

    width: D, the number of channels.
    eps: added to the mean square, so that a vector of zeros does not divide by zero.
    forward: x [..., D] -> [..., D] in x's dtype; computed in float32 unless x is float64.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(compute_dtype(x))
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)
