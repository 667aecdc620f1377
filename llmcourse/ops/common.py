"""What every memory rule shares: refusing bad input, and the precision to compute in."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def require(ok: bool, argument: str, got: object, needs: str) -> None:
    """Unless `ok`, raise a ValueError: the argument, what it got, what it needs."""
    if not ok:
        raise ValueError(f"{argument}: got {got}, needs {needs}")


def require_count(argument: str, got: object, least: int = 1) -> None:
    """Refuse anything but a whole number, an int of at least `least`."""
    ok = type(got) is int and got >= least
    require(ok, argument, repr(got), f"a whole number >= {least}")


def require_heads(num_heads: object, width: int) -> None:
    """Refuse anything but a count that divides the width."""
    require_count("num_heads", num_heads)
    fits = isinstance(num_heads, int) and width % num_heads == 0
    require(fits, "num_heads", num_heads, f"a divisor of width = {width}")


def require_number(argument: str, got: Any, ok: Callable[[Any], bool], needs: str) -> None:
    """Refuse anything but a number for which `ok`."""
    is_number = isinstance(got, (int, float)) and not isinstance(got, bool)
    require(is_number and ok(got), argument, repr(got), needs)


def require_scale(scale: float | None) -> None:
    """Refuse anything but a finite factor, or None for the usual one."""
    if scale is not None:
        require_number("scale", scale, math.isfinite, "a finite number or None")


def require_tensor(name: str, x: object) -> None:
    """Refuse anything but a tensor of floating-point numbers."""
    require(isinstance(x, Tensor), name, type(x).__name__, "a tensor")
    if isinstance(x, Tensor):
        require(x.is_floating_point(), name, x.dtype, "a floating-point dtype")


def require_floats(first: str, **tensors: Tensor) -> None:
    """Refuse anything but floating-point tensors with the dtype and device of the `first`."""
    for name, x in tensors.items():
        require_tensor(name, x)
    dtype, device = tensors[first].dtype, tensors[first].device
    for name, x in tensors.items():
        require(x.dtype == dtype, name, x.dtype, f"the dtype of {first}, {dtype}")
        require(x.device == device, name, x.device, f"the device of {first}, {device}")


def refuse_second_gradient(form: str) -> None:
    """Called in a backward pass that is no part of a graph itself: refuse create_graph=True."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise NotImplementedError(f"gradients of gradients: only the {form} form has them")


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype to compute in: float64 for float64, otherwise float32 (also for bfloat16)."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context in which autocast does not lower the precision of products on x's device."""
    kind = x.device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
