"""What every memory rule shares: refusing bad input, and the precision to compute in."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def require(ok: bool, argument: str, got: object, needs: str) -> None:
    """Unless `ok`, raise a ValueError: the argument, what it got, what it needs."""
    if not ok:
        raise ValueError(f"{argument}: got {got}, needs {needs}")


def require_count(argument: str, got: object) -> None:
    """Refuse anything but a whole number of at least 1."""
    ok = isinstance(got, int) and not isinstance(got, bool) and got >= 1
    require(ok, argument, repr(got), "a whole number >= 1")


def require_floats(first: str, **tensors: Tensor) -> None:
    """Refuse anything but floating-point tensors with the dtype and device of the `first`."""
    for name, x in tensors.items():
        require(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
        require(x.is_floating_point(), name, x.dtype, "a floating-point dtype")
    dtype, device = tensors[first].dtype, tensors[first].device
    for name, x in tensors.items():
        require(x.dtype == dtype, name, x.dtype, f"the dtype of {first}, {dtype}")
        require(x.device == device, name, x.device, f"the device of {first}, {device}")


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype to compute in: float64 for float64, otherwise float32 (also for bfloat16)."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context in which autocast does not lower the precision of products on x's device."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
