"""MXFP4: weights of four bits, 32 of them with one scale, as Kimi K3's experts are published.

The format is that of the OCP Microscaling Formats specification, version 1.0.
"""

from itertools import pairwise

import torch
from torch import Tensor

from llmcourse.models.checkpoint import CheckpointError, Shape
from llmcourse.ops.common import compute_dtype, require, require_tensor

# E2M1: a bit of sign, two of exponent, one of mantissa; the code is the place in this list.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES = torch.tensor(E2M1 + [-x for x in E2M1], device="cpu")
MIDDLES = torch.tensor([(a + b) / 2 for a, b in pairwise(E2M1)], device="cpu")
LARGEST_POWER = 2  # of E2M1: 4 is its largest power of two
GROUP = 32  # weights that share a scale
BIAS = 127  # a scale is stored as its exponent plus this
ENDINGS = ("_packed", "_scale")  # of the names of the two tensors


def stored_shapes(name: str, shape: Shape) -> dict[str, Shape]:
    """The two tensors that hold the matrix `name` of this shape [O, I]: name -> shape.

    Neither when I is no multiple of 32: MXFP4 has no such matrix.
    """
    outputs, inputs = shape
    if inputs % GROUP:
        return {}
    shapes = (outputs, inputs // 2), (outputs, inputs // GROUP)
    return {name + ending: s for ending, s in zip(ENDINGS, shapes, strict=True)}


def to_stored(name: str, weight: Tensor) -> dict[str, Tensor]:
    """The matrix `name` in the two tensors that hold it: name -> tensor, as in `quantise`."""
    try:
        parts = quantise(weight)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return {name + ending: part for ending, part in zip(ENDINGS, parts, strict=True)}


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest matrix that MXFP4 can hold with the scales of the specification.

    The scale of 32 neighbours is the power of two that brings the largest of them to 4 up to 8
    (OCP MX v1.0, section 6.3); what is beyond 6 becomes 6. Halfway between two values the one
    with the even code is taken. 0.0 and -0.0 keep their signs; weights below 2**-129 become 0.
    weight: [O, I], I a multiple of 32, any floating-point dtype; finite.
    Returns packed [O, I / 2] and scale [O, I / 32], uint8, as `dequantise` takes them.
    Raises ValueError for other shapes, inf and nan.
    """
    _check_weight(weight)
    groups = weight.detach().to(compute_dtype(weight)).unflatten(-1, (-1, GROUP))
    _, power = torch.frexp(
        groups.abs().amax(dim=-1)
    )  # the largest is in [2**(power - 1), 2**power)
    exponent = (power - 1 - LARGEST_POWER).clamp(-BIAS, BIAS)
    exponent = torch.where(groups.any(dim=-1), exponent, -BIAS)
    scaled = torch.ldexp(groups, -exponent.unsqueeze(-1))  # exact: only exponents change
    codes = _nearest(scaled.abs()) + 8 * scaled.signbit()
    low, high = codes.flatten(-2).to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    return low | high << 4, (exponent + BIAS).to(torch.uint8)


def _nearest(magnitudes: Tensor) -> Tensor:
    """The code of the nearest value, 0 to 7; of two that are as near, the even one."""
    middles = MIDDLES.to(magnitudes)
    below = torch.bucketize(magnitudes, middles)
    above = torch.bucketize(magnitudes, middles, right=True)  # differs in a middle alone
    return torch.where(below % 2 == 0, below, above)


def dequantise(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix in two tensors of bytes.

    packed: [O, I / 2] uint8, two codes a byte; the low four bits are the first weight.
    scale: [O, I / 32] uint8, e for 32 weights: they are multiplied by 2**(e - 127) (E8M0).
    dtype: of the result; bfloat16 holds every such product below its largest number exactly.
    Returns [O, I]. Raises CheckpointError for other dtypes and shapes, and for e = 255, which
    means "not a number".
    """
    _check(packed, scale)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1)  # [O, I / 2, 2]
    values = VALUES.to(packed.device, torch.promote_types(dtype, torch.float32))
    weights = values[codes.int()].view(*scale.shape, GROUP)
    exponents = scale.int().unsqueeze(-1) - BIAS
    return torch.ldexp(weights, exponents).flatten(-2).to(dtype)


def _check_weight(weight: Tensor) -> None:
    require_tensor("weight", weight)
    fits = weight.dim() == 2 and weight.shape[1] % GROUP == 0 and weight.numel() > 0
    require(not weight.is_meta, "weight", "a tensor on the meta device", "numbers")
    needs = f"[O, I] with I a multiple of {GROUP}"
    require(fits, "weight", list(weight.shape), needs)
    finite = bool(weight.isfinite().all())
    require(finite, "weight", "inf or nan", "finite numbers: MXFP4 has no others")


def _check(packed: Tensor, scale: Tensor) -> None:
    for name, x in {"packed": packed, "scale": scale}.items():
        if x.dtype != torch.uint8:
            raise CheckpointError(f"MXFP4 {name}: got {x.dtype}, needs torch.uint8")
    rows, groups = scale.shape
    if list(packed.shape) != [rows, groups * GROUP // 2]:
        needs = f"16 bytes for each of scale's {list(scale.shape)}"
        raise CheckpointError(f"MXFP4 packed: got {list(packed.shape)}, needs {needs}")
    if (scale == 255).any():
        raise CheckpointError("MXFP4 scale: got 255, which is no number, needs 0 to 254")
