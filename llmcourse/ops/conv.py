"""The short causal convolution: each channel looks at its last W tokens, and at nothing else.

x is [B, T, D]; weight is [D, W], weight[:, -1] multiplying the current token (the layout of a
depthwise convolution's weight without its middle axis); the state, the last W - 1 tokens, is
[B, W - 1, D]. float64 in: float64 throughout; otherwise the computation and the state are
float32 and y has x's dtype. Source: the short convolution of Kimi Team 2025 (arXiv:2510.26692),
section 4.
"""

import torch
from torch import Tensor

from llmcourse.ops.common import compute_dtype, require


def causal(
    x: Tensor, weight: Tensor, *, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y[t] = sum_w weight[:, w] * x[t - (W - 1) + w], channel by channel; x is 0 (or the state)
    before 0.

    Returns y [B, T, D] and the state [B, W - 1, D] to go on from. Raises ValueError on a wrong
    shape, dtype or device.
    """
    _check(x, weight, initial_state)
    B, T, D = x.shape
    W = weight.shape[1]
    dtype = compute_dtype(x)
    past = x.new_zeros(B, W - 1, D) if initial_state is None else initial_state
    window = torch.cat([past.to(dtype), x.to(dtype)], dim=1)
    taps = weight.to(dtype).unbind(1)
    y = taps[0] * window[:, :T]
    for w, tap in enumerate(taps[1:], start=1):
        y = torch.addcmul(y, tap, window[:, w : w + T])
    return y.to(x.dtype), window[:, T:].clone()  # a view would keep the whole text alive


def step(x: Tensor, weight: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token: x [B, D], weight [D, W], state [B, W - 1, D] -> (y [B, D], new state)."""
    y, state = causal(x.unsqueeze(1), weight, initial_state=state)
    return y.squeeze(1), state


def _check(x: Tensor, weight: Tensor, state: Tensor | None) -> None:
    require(x.dim() == 3 and x.numel() > 0, "x", list(x.shape), "[B, T, D], none of them 0")
    fits = weight.dim() == 2 and weight.shape[0] == x.shape[2] and weight.shape[1] > 0
    require(
        fits, "weight", list(weight.shape), f"[D, W] with D = {x.shape[2]} as in x and W >= 1"
    )
    for name, value in {"x": x, "weight": weight, "initial_state": state}.items():
        if value is not None:
            require(value.is_floating_point(), name, value.dtype, "a floating-point dtype")
            require(
                value.device == x.device, name, value.device, f"the device of x, {x.device}"
            )
    if state is not None:
        needed = [x.shape[0], weight.shape[1] - 1, x.shape[2]]
        require(list(state.shape) == needed, "initial_state", list(state.shape), str(needed))
