"""What the layers with a gated delta rule share: projections, the gate that fades, memory."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.cache import Cache, RecurrentState
from llmcourse.layers.conv import ShortConvolution
from llmcourse.layers.recurrent import new_state, require_memory
from llmcourse.ops.common import compute_dtype, require, require_number


class HeadProjection(nn.Module):
    """What becomes the queries, keys or values of a layer: SiLU(conv(W x)), cut into heads.

    width: D, the number of channels.
    num_heads, head_width: H heads of K channels each.
    conv_size: tokens that each channel sees, the current one included; None: no convolution.
    forward: x [B, T, D] -> [B, T, H, K]; `window`: the convolution's memory, or None.
    """

    def __init__(
        self, width: int, num_heads: int, head_width: int, conv_size: int | None
    ) -> None:
        super().__init__()
        inner = num_heads * head_width
        self.num_heads = num_heads
        self.linear = nn.Linear(width, inner, bias=False)
        self.conv = None if conv_size is None else ShortConvolution(inner, conv_size)

    def forward(self, x: Tensor, window: RecurrentState | None = None) -> Tensor:
        y = self.linear(x)
        if self.conv is not None:
            y = self.conv(y, window)
        return F.silu(y).unflatten(-1, (self.num_heads, -1))


class DecayGate(nn.Module):
    """How fast each head, or each of its channels, forgets what it holds, from the token alone.

    With f = project(x) + dt_bias and a = exp(A_log), one number for each head:
    g = -a softplus(f) without a lower bound, as Mamba-2 (Dao and Gu 2024) and Kimi Linear;
    g = lower_bound sigmoid(a f) with one, as Kimi K3: another function, not a clamp of it.
    project: a module, [B, T, D] -> [B, T, H K].
    num_heads, head_width: H heads, K rates each; K = 1 is one rate for the whole head.
    lower_bound: the fastest decay in log space, below 0, or None.
    forward: x [B, T, D] -> g [B, T, H, K], the log decay, in float32 unless x is float64.
    A new gate, while project(x) is near 0, forgets at the rates of `initial_rates`; without a
    bound at these times a, from 1 to 16.
    """

    def __init__(
        self,
        project: nn.Module,
        num_heads: int,
        head_width: int,
        lower_bound: float | None = None,
    ) -> None:
        super().__init__()
        if lower_bound is not None:
            needs = "a finite number below 0"
            require_number("lower_bound", lower_bound, lambda x: -math.inf < x < 0, needs)
        self.project, self.num_heads, self.lower_bound = project, num_heads, lower_bound
        rates = initial_rates(num_heads * head_width)
        if lower_bound is None:
            self.A_log = nn.Parameter(torch.empty(num_heads).uniform_(1, 16).log())
            self.dt_bias = nn.Parameter(rates.expm1().log())  # softplus gives them back
        else:
            self.A_log = nn.Parameter(torch.zeros(num_heads))
            self.dt_bias = nn.Parameter((rates / -lower_bound).clamp(max=0.9).logit())

    def forward(self, x: Tensor) -> Tensor:
        dtype = compute_dtype(x)
        f = (self.project(x).to(dtype) + self.dt_bias.to(dtype)).unflatten(
            -1, (self.num_heads, -1)
        )
        a = self.A_log.to(dtype).exp().unsqueeze(-1)
        if self.lower_bound is None:
            return -a * softplus(f)
        return self.lower_bound * torch.sigmoid(a * f)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), of any shape, in x's dtype.

    F.softplus, once compiled, fails in a backward pass whose gradients lie in another order
    than x (PyTorch 2.13).
    """
    return torch.logaddexp(x, torch.zeros_like(x))


def initial_rates(number: int) -> Tensor:
    """Rates of forgetting from 0.001 to 0.1 a token, every order of magnitude as likely.

    At such a rate a page lasts from ten tokens to a thousand. Source: the first time steps of
    Mamba-2 (Dao and Gu 2024, arXiv:2405.21060).
    """
    return torch.empty(number).uniform_(math.log(1e-3), math.log(1e-1)).exp()


def low_rank(width: int, rank: int, out: int) -> nn.Sequential:
    """A matrix [out, width] as the product of two thin ones, `rank` channels between them."""
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False))


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(|x|^2 + eps) along the last axis: unit length, and 0 stays 0.

    Any shape; returns float32, or float64 for float64, in which the rules compute.
    """
    x = x.to(compute_dtype(x))
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + eps)


class GatedMemory(nn.Module):
    """What both layers with a gated delta rule remember, and how they make q, k, v and beta.

    A subclass sets the sizes, `q`, `k`, `v` (each a `HeadProjection`), `beta` and `out`.
    """

    num_heads: int
    key_width: int
    value_width: int
    conv_size: int | None
    q: HeadProjection
    k: HeadProjection
    v: HeadProjection
    beta: nn.Linear
    out: nn.Linear

    def write_and_read(
        self, x: Tensor, windows: Sequence[RecurrentState | None]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q and k [B, T, H, K], of unit length but for q's scale; v [B, T, H, V]; beta."""
        q, k, v = (f(x, w) for f, w in zip((self.q, self.k, self.v), windows, strict=True))
        return self.key_width**-0.5 * unit(q), unit(k), v, torch.sigmoid(self.beta(x))

    def memory_shapes(self, batch: int) -> list[list[int]]:
        """Of the windows of q, k and v, if there are convolutions, and of the page."""
        H, K, V = self.num_heads, self.key_width, self.value_width
        page = [batch, H, K, V]
        if self.conv_size is None:
            return [page]
        return [*([batch, self.conv_size - 1, H * width] for width in (K, K, V)), page]

    def new_memory(self, batch: int = 1) -> Cache:
        """The empty memory of `batch` sequences: its parts have `memory_shapes`."""
        return Cache(
            [new_state(self.out.weight, *shape) for shape in self.memory_shapes(batch)]
        )


def parts_of(memory: Cache | None, shapes: Sequence[list[int]]) -> list[RecurrentState | None]:
    """The states in a memory, once all of them are known to have these shapes; or as many None.

    Raises ValueError, before anything is changed, for another memory.
    """
    if memory is None:
        return [None] * len(shapes)
    fits = isinstance(memory, Cache) and len(memory) == len(shapes)
    got = f"{len(memory)} parts" if isinstance(memory, Cache) else type(memory).__name__
    require(fits, "memory", got, f"a Cache of {len(shapes)} states")
    for part, shape in zip(memory, shapes, strict=True):
        require_memory(part, shape)
    return list(memory)
