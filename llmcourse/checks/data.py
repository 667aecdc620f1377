"""Data as checks know it: tensors and plain values in lists, tuples and dicts."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Of the largest expected value; other orders of summation stay below ten roundings.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}
DEEPEST = 16  # nested lists and dicts; what lies deeper is no data
MOST = 300_000  # entries of lists and dicts, all together
LARGEST = 2**26  # entries of a tensor, which may be one number expanded
BARE: dict[type, Callable[[Any], Any]] = {  # a subclass's own methods might say anything
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda x: bytes.__getitem__(x, slice(None)),
    list: lambda x: list.__getitem__(x, slice(None)),
    tuple: lambda x: tuple.__getitem__(x, slice(None)),
}


class NotDataError(Exception):
    """What a learner's function returned can be no answer; the text says what it is."""


def is_float(x: Any) -> bool:
    """Whether x is a tensor of floating point numbers."""
    return isinstance(x, Tensor) and x.is_floating_point()


def is_oracle(x: Any) -> bool:
    """Whether an expected answer is a function to be called for it."""
    return callable(x) and not isinstance(x, type)


def plain(answer: Any) -> Any:
    """The same data in Python's and torch's own classes, gradients kept; no method is called.

    So a subclass of int, str, list, dict or Tensor counts as what it holds, whatever its
    methods pretend. An object that is no data stays as it is. NotDataError: too deep, too much.
    """
    left = MOST

    def bare(x: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > DEEPEST or left < 0:
            what = "nested too deep, or holding itself" if depth > DEEPEST else "without an end"
            raise NotDataError(f"a list or dict {what}")
        kind = type(x)
        if issubclass(kind, Tensor):
            return _plain_tensor(x)
        if issubclass(kind, dict):
            return {bare(k, depth + 1): bare(v, depth + 1) for k, v in dict.items(x)}
        base = next((base for base in BARE if issubclass(kind, base)), None)
        if (
            base is None
            and isinstance(x, (Tensor, dict, np.ndarray, *BARE))
            and kind is not np.ndarray
        ):
            raise NotDataError("an object that only pretends to be data")
        if base is None or kind is bool:
            return x
        x = BARE[base](x)
        return base(bare(y, depth + 1) for y in x) if base in (list, tuple) else x

    return bare(answer, 0)


def _plain_tensor(x: Tensor) -> Tensor:
    if type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise NotDataError("a tensor whose class decides what it holds: return a plain one")
    with torch._C.DisableTorchFunctionSubclass():
        if not x.is_nested and Tensor.numel(x) > LARGEST:
            raise NotDataError(f"a tensor of shape {list(Tensor.size(x))}, far too large")
        same = type(x) in (Tensor, torch.nn.Parameter)
        return x if same else Tensor.as_subclass(x, Tensor)


def is_listing(x: Any) -> bool:
    """Whether x is a list, not empty, of ids or words: ints, strings, or lists of these."""
    if not isinstance(x, (list, tuple)) or not x:
        return False
    return all(
        type(y) in (int, str) or is_listing(y) or (isinstance(y, (list, tuple)) and not y)
        for y in x
    )


def map_tensors(change: Callable[[Tensor], Any], data: Any, depth: int = 0) -> Any:
    """The same data with `change` applied to every tensor; containers are new."""
    if isinstance(data, Tensor):
        return change(data)
    if depth < DEEPEST and isinstance(data, (list, tuple)):
        items = [map_tensors(change, x, depth + 1) for x in data]
        return tuple(items) if isinstance(data, tuple) else items
    if depth < DEEPEST and isinstance(data, dict):
        return {key: map_tensors(change, x, depth + 1) for key, x in data.items()}
    return data


def copy(data: Any) -> Any:
    """A copy that shares nothing, cut off from any gradient."""
    return map_tensors(lambda x: x.detach().clone(), data)


def leaves(data: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(path, leaf) for everything in data that is not a list, tuple or dict."""
    if depth < DEEPEST and isinstance(data, (list, tuple)):
        for i, x in enumerate(data):
            yield from leaves(x, f"{path}[{i}]", depth + 1)
    elif depth < DEEPEST and isinstance(data, dict):
        for key, x in data.items():
            yield from leaves(x, f"{path}[{key!r}]", depth + 1)
    else:
        yield path, data


def double(x: Tensor) -> Tensor:
    """A copy, in float64 where x is of floating point."""
    x = x.detach().clone()
    return x.double() if x.is_floating_point() else x


def variable(x: Tensor) -> Tensor:
    """A copy that gathers a gradient, where x is of floating point."""
    x = x.detach().clone()
    return x.requires_grad_() if x.is_floating_point() else x


def assign(x: Tensor, new: Tensor) -> None:
    """Make x hold what `new` holds, its shape too: so does it for all who have it."""
    new = new.detach().to(x.dtype)
    with torch.no_grad():
        if x.shape == new.shape:
            x.copy_(new)
        else:
            new = new.contiguous()
            x.set_(new.untyped_storage(), 0, new.shape, new.stride())


def product(outputs: list[Tensor], inputs: list[Tensor], cotangents: list[Tensor]) -> Any:
    """The vector-Jacobian product of each input; None where there is no path to it.

    By way of a scalar: given cotangents, torch imports sympy, which takes seconds.
    """
    terms = [(y * c).sum() for y, c in zip(outputs, cotangents, strict=True)]
    total = sum(terms, start=torch.zeros(()))
    return torch.autograd.grad(total, inputs, allow_unused=True, retain_graph=True)


def scale(want: Tensor) -> float:
    """The largest finite magnitude, 1 where there is none: what errors are measured by."""
    finite = want[torch.isfinite(want)].abs()
    return (float(finite.max()) if finite.numel() else 0.0) or 1.0


def wrong(got: Tensor, want: Tensor, tolerance: float) -> Tensor:
    """True where an entry is further off than tolerance times the largest expected."""
    if not want.is_floating_point():
        return got != want
    got, want = got.double(), want.double()
    error = torch.where(got == want, 0.0, (got - want).abs())  # inf - inf is NaN
    return ~(error <= tolerance * scale(want))


def close(got: Any, want: Any, tolerance: float) -> bool:
    """Whether two leaves of the same type, and shape, agree; floats up to the tolerance."""
    if isinstance(want, Tensor):
        return not wrong(got, want, tolerance).any()
    if isinstance(want, float):
        return got == want or (
            abs(got) < 1e308 and math.isclose(got, want, rel_tol=tolerance)
        )  # an int may be too large for a float
    if isinstance(want, (list, tuple)):
        return list(map(_listed, got)) == list(map(_listed, want))
    return bool(got == want)


def _listed(x: Any) -> Any:
    return list(map(_listed, x)) if isinstance(x, (list, tuple)) else x


def same(a: Any, b: Any) -> bool:
    """Bit for bit and structure included, NaN equal to NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        return alike and bool(((a == b) | (a.isnan() & b.isnan())).all())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and (a is b or bool(a == b))
