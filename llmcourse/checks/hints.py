"""The usual causes: one hint at most, from what an answer has in common with a mistake."""

import contextlib
import itertools
import math
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llmcourse.checks import data
from llmcourse.checks.guard import call
from llmcourse.checks.report import Check, is_hidden

AXES = {"B": "sequence of the batch", "T": "position", "H": "head"}
NEAR = 1e-5  # at most so far apart are answers that are meant to be the same
NOT_FINITE = {
    "NaN": "0/0, exp of a large number, or softmax of nothing but -inf?",
    "infinite": "divided by 0, or exp of a large number?",
}


def of_type(got: Any, want: Any) -> str:
    """Why an answer has another type."""
    if got is None:
        return "is the `return` missing?"
    if isinstance(got, types.MethodType):
        return f"is `@property` missing above `def {got.__name__}`?"
    if type(got).__name__ == "coroutine":
        return "`async def` makes a coroutine: `def` makes a function"
    if callable(got):
        return "this is a function, not what it returns: call it"
    if isinstance(got, np.ndarray | np.generic):
        return "stay in torch, or convert at the end: torch.from_numpy, int, float"
    if isinstance(got, Tensor) and isinstance(want, tuple) and len(want) > 1:
        return f"it returns {len(want)} things, with a comma between them"
    if isinstance(got, Tensor) and isinstance(want, (list, tuple)):
        return "`.tolist()` makes a list of a tensor"
    if isinstance(got, Tensor) and isinstance(want, (int, float)):
        return "`.item()` makes a number of a tensor with one entry"
    if isinstance(got, float) and isinstance(want, int):
        return "`//` divides without a remainder and stays an int; `/` makes a float"
    if isinstance(want, (list, tuple)) and isinstance(got, Iterable):
        return "`list(...)` makes a list of it"
    if isinstance(want, str) and isinstance(got, bytes):
        return '`.decode("utf-8")` makes a string of bytes'
    if isinstance(got, Iterator) or type(got).__name__ == "generator":
        return "`yield` makes a generator: `return` the answer"
    if isinstance(want, Tensor) and isinstance(got, (int, float)):
        return "`torch.tensor(...)` makes a tensor of a number, but cuts its gradient"
    if isinstance(want, Tensor) and isinstance(got, tuple) and _with_indices(*got):
        return "`.values` is the tensor that max, sort, topk and others return with `.indices`"
    if isinstance(want, Tensor) and isinstance(got, (list, tuple)):
        return "torch.stack or torch.cat makes one tensor of several"
    return ""


def _with_indices(*got: Any) -> bool:
    """Whether these are the values and indices that torch's max, sort or topk return."""
    both = len(got) == 2 and all(isinstance(x, Tensor) for x in got)
    return both and got[1].dtype == torch.int64 and got[0].shape == got[1].shape


def of_dtype(got: Tensor) -> str:
    """Why an answer has another dtype."""
    if got.dtype in (torch.float16, torch.bfloat16):
        return "compute in the dtype that came in, not in half precision"
    return "a new tensor (zeros, arange, a mask) takes dtype=x.dtype; float32 is the default"


def usual_cause(it: Check, whole: Any, path: str, got: Any, want: Any) -> str:
    """First the mistakes that the check names, then those anyone makes; may be empty.

    whole: the answer; got, want: the part of it at `path` that has a wrong shape or value.
    """
    found = known(it, whole)
    if found or not isinstance(want, Tensor):
        return found
    if not path and it.causal_in is not None and got.shape == want.shape:
        found = _looks_ahead(it)
    if found or got.shape != want.shape or not want.is_floating_point():
        return found or _other_order(got, want) or _shifted(it, got, want)
    got, want = got.double(), want.double()
    near = max(it.tolerance_of(want), NEAR)
    return (
        factor(got, want, near)
        or _untouched(it, got)
        or _other_order(got, want)
        or _shifted(it, got, want)
        or _precision(it, got, want)
        or _part(it, data.wrong(got, want, near))
    )


def known(it: Check, got: Any) -> str:
    """The hint of the named mistake whose answer this is."""
    mine = dict(data.leaves(got))
    for hint, mistaken in it.mistakes.items():
        with contextlib.suppress(Exception):  # no hint is better than a traceback of the test's
            theirs = dict(data.leaves(it.oracle(mistaken)))
            if set(mine) == set(theirs) and all(
                _alike(mine[path], w, it.tolerance_of(w)) for path, w in theirs.items()
            ):
                return hint
    return ""


def _alike(got: Any, mistaken: Any, tolerance: float) -> bool:
    if isinstance(mistaken, Tensor):
        fits = isinstance(got, Tensor) and got.shape == mistaken.shape
        return fits and data.close(got, mistaken, tolerance)
    if isinstance(mistaken, (int, float)):
        number = isinstance(got, (int, float)) and abs(got) < 1e308
        return number and math.isclose(got, mistaken, rel_tol=max(tolerance, 1e-9))
    return type(got) is type(mistaken) and bool(got == mistaken)


def _looks_ahead(it: Check) -> str:
    """Change one token after the other: does an earlier position of the answer notice?"""
    axis = it.axes.index("T")
    assert it.causal_in is not None
    base = it.args[it.causal_in]
    with contextlib.suppress(Exception):
        right = call(it, data.copy(it.args))
        for s in range(1, base.shape[axis]):
            args = list(data.copy(it.args))
            token = args[it.causal_in].select(axis, s)
            other = token + 1 if data.is_float(base) else (token + 1) % (int(base.max()) + 1)
            token.copy_(other)
            moved = (right != call(it, args)).movedim(axis, 0)[:s].flatten(1).any(1)
            if moved.any():
                text = f"position {int(moved.nonzero()[0])} depends on token {s}: not causal"
                return f"{text} (the mask, or a reshape that mixes positions?)"
    return ""


def _other_order(got: Tensor, want: Tensor) -> str:
    """The right numbers, but with the axes in another order, or in another shape."""
    if got.dim() == want.dim() and 2 <= got.dim() <= 5:
        for order in itertools.permutations(range(got.dim())):
            turned = got.permute(order)
            if list(order) == sorted(order) or turned.shape != want.shape:
                continue
            if not data.wrong(turned, want, NEAR).any():
                return "right numbers, but the axes are in another order: transposed?"
    if got.numel() == want.numel() and got.shape != want.shape:
        if not data.wrong(got.reshape(want.shape), want, NEAR).any():
            return "right numbers in another shape: reshape, or keepdim"
        return "as many numbers as there should be: are the axes in another order?"
    return ""


def factor(got: Tensor, want: Tensor, near: float) -> str:
    """Zero, a constant factor or a constant offset."""
    if want.numel() < 2 or not want.any():
        return ""
    if not got.any():
        return "all zeros: is the result ever filled in?"
    ratio = float((got * want).sum() / (want * want).sum())
    if abs(ratio - 1) > 1e-3 and not data.wrong(got, ratio * want, near).any():
        if abs(ratio + 1) < 1e-3:
            return "the sign is turned round"
        times = "the same multiple of" if is_hidden() else f"{ratio:.4g} times"
        return f"every entry is {times} what it should be"
    off = got - want
    if not data.wrong(off, off.mean().expand_as(off), near).any():
        return "every entry is off by the same amount"
    return ""


def _untouched(it: Check, got: Tensor) -> str:
    for name, arg in zip(it.argument_names(), it.args, strict=False):
        if data.is_float(arg) and arg.shape == got.shape and torch.equal(arg.double(), got):
            return f"this is {name} as it came in"
    return ""


def _shifted(it: Check, got: Tensor, want: Tensor) -> str:
    if "T" not in it.axes or not len(it.axes) == want.dim() == got.dim():
        return ""
    g, w = (x.movedim(it.axes.index("T"), 0) for x in (got, want))
    if g.shape != w.shape or len(g) < 3:
        return ""
    if not data.wrong(g[1:], w[:-1], NEAR).any():
        return "position t holds what belongs to t - 1: off by one"
    if not data.wrong(g[:-1], w[1:], NEAR).any():
        return "position t holds what belongs to t + 1: off by one"
    return ""


def _precision(it: Check, got: Tensor, want: Tensor) -> str:
    """Right but for rounding."""
    dtype = it.dtype_of(want)
    error = float((got - want).abs().max()) / data.scale(want)
    if not error < 1e-2 or dtype not in (torch.float32, torch.float64):
        return ""
    for half in (torch.bfloat16, torch.float16):
        if torch.equal(got, got.to(half).double()):
            return f"rounded to {str(half)[6:]}: compute in {str(dtype)[6:]} throughout"
    if dtype == torch.float64 and torch.equal(got, got.float().double()):
        return "rounded to float32: compute in the dtype that came in"
    if dtype == torch.float64 and error < 1e-6:
        return "part of it is computed in float32: keep the dtype that came in"
    if error < 1e-3:
        return "nearly right: a small constant (eps), an approximation, or half precision?"
    return ""


def _part(it: Check, wrong: Tensor) -> str:
    """Where along a named axis it is wrong, if not everywhere."""
    if len(it.axes) != wrong.dim():
        return ""
    for axis, letter in enumerate(it.axes):
        if wrong.shape[axis] < 2:
            continue
        what = AXES.get(letter, f"index along {letter}")
        bad = wrong.movedim(axis, 0).flatten(1).any(1)
        right, last = (~bad).nonzero().flatten().tolist(), len(bad) - 1
        if right == [0]:
            return f"the first {what} is right, the others are not"
        if right == list(range(last)):
            return f"only the last {what} is wrong"
        if right == list(range(1, last + 1)):
            return f"only the first {what} is wrong"
    return ""
