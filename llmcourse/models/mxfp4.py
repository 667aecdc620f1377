"""MXFP4: weights of four bits, 32 of them with one scale, as Kimi K3's experts are published.

The format is that of the OCP Microscaling Formats specification, version 1.0.
"""

import torch
from torch import Tensor

from llmcourse.models.checkpoint import CheckpointError, Shape

# E2M1: a bit of sign, two of exponent, one of mantissa; the code is the place in this list.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES = torch.tensor(E2M1 + [-x for x in E2M1], device="cpu")
GROUP = 32  # weights that share a scale


def stored_shapes(name: str, shape: Shape) -> dict[str, Shape]:
    """The two tensors that hold the matrix `name` of this shape [O, I]: name -> shape."""
    outputs, inputs = shape
    halves, groups = inputs // 2, -(-inputs // GROUP)
    return {f"{name}_packed": (outputs, halves), f"{name}_scale": (outputs, groups)}


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
    weights = VALUES.to(packed.device)[codes.int()].view(*scale.shape, GROUP)
    exponents = scale.int().unsqueeze(-1) - 127
    return torch.ldexp(weights, exponents).flatten(-2).to(dtype)


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
