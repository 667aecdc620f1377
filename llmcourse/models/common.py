"""What every model asks of its configuration and of its input."""

from typing import Any

import torch
from torch import Tensor

from llmcourse.cache import Cache
from llmcourse.ops.common import require, require_number

LIMIT = 2**31  # of sizes and factors: PyTorch takes what comes of them


def require_size(argument: str, got: object, least: int = 1) -> None:
    """Refuse anything but an int of at least `least` that an axis of a tensor may have."""
    fits = type(got) is int and least <= got < LIMIT
    require(fits, argument, repr(got), f"a whole number >= {least} and below 2**31")


def require_positive(argument: str, got: object) -> None:
    """Refuse anything but a factor above 0 that keeps what it multiplies finite."""
    needs = "a finite number above 0, below 2**31"
    require_number(argument, got, lambda x: 0 < x < LIMIT, needs)


def require_eps(got: object) -> None:
    """Refuse a `norm_eps` that would leave a division by zero, or hide what is divided."""
    require_number("norm_eps", got, lambda x: 0 < x < 1, "more than 0, below 1")


def require_ids(ids: Tensor, vocab_size: int) -> None:
    """Refuse anything but ids [B, T] int64, at least one, from 0 to vocab_size - 1."""
    integers = isinstance(ids, Tensor) and ids.dtype == torch.int64
    require(integers, "ids", getattr(ids, "dtype", type(ids).__name__), "an int64 tensor")
    shape_fits = ids.dim() == 2 and ids.numel() > 0
    require(shape_fits, "ids", list(ids.shape), "[B, T] with at least one token")
    if not ids.is_meta and not torch.compiler.is_compiling():  # what values are there
        low, high = (int(x) for x in ids.aminmax())
        worst = low if low < 0 else high
        inside = low >= 0 and high < vocab_size
        require(inside, "ids", f"token {worst}", f"0 to {vocab_size - 1}")


def require_own_cache(cache: Cache | None, config: Any) -> None:
    """Refuse a cache that no model of this configuration made."""
    if cache is not None:
        made_for = getattr(cache, "made_for", None)
        require(made_for == config, "cache", f"one for {made_for}", f"one for {config}")
