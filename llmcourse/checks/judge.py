"""Judging an answer, step by step; the first step that fails ends it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from llmcourse.checks import data, hints
from llmcourse.checks.guard import call, fail_with
from llmcourse.checks.report import (
    ANYTHING,
    Check,
    CheckFailed,
    amount,
    around,
    at,
    both,
    count,
    different,
    fail,
    first,
    kind,
    place,
    show,
    shown,
    size,
)

GRADIENT = 10  # times the tolerance: a backward pass sums more often


def answer(it: Check) -> None:
    """The call's answer, then the arguments it leaves behind, then the gradients."""
    args = data.copy(it.args)
    want = it.oracle(it.expected)
    got = data.copy(_plain(it, call(it, args)))
    if want is ANYTHING:
        _check_kind(it, got)
    else:
        _compare(it, got, want)
    for claim, how in it.holds.items():
        _check_claim(it, data.copy(got), claim, *(how if isinstance(how, tuple) else (how,)))
    _check_unchanged(it, args)
    if it.grad:
        with torch.enable_grad():
            _check_gradient(it)


def _plain(it: Check, answer: Any) -> Any:
    try:
        return data.plain(answer)
    except data.NotDataError as error:
        fail(it, f"returned {error}")


def _check_claim(
    it: Check,
    got: Any,
    claim: str,
    predicate: Callable[[Any], bool],
    explain: Callable[[Any], str] | None = None,
) -> None:
    try:
        if predicate(got):
            return
        reason = f"\n{explain(got)}" if explain else ""
    except CheckFailed:
        raise
    except Exception as error:
        problem = f"it cannot be tried whether {claim}"
        fail(it, problem, shown=f"{type(error).__name__}: {error}\ngot  {show(got)}")
    fail(it, f"it does not hold that {claim}", shown=f"got  {show(got)}{reason}")


def raises(it: Check) -> None:
    """The call must raise `expected`; compared by name, which is what a stand-in sends."""
    wanted = it.expected.__name__
    try:
        value = call(it, data.copy(it.args), convert=False)
    except CheckFailed:
        raise
    except Exception as error:
        if wanted not in [c.__name__ for c in type(error).__mro__]:
            fail_with(it, error, f"must raise {wanted} here, but raised")
        return
    shown = f"got  {show(_plain(it, value))}"
    fail(it, f"must raise {wanted} here, but returned", shown=shown)


def _compare(it: Check, got: Any, want: Any) -> None:
    """Type, shape, dtype, finite, value: each of everything before the next of anything."""
    pairs = list(_pairs(it, got, got, want))
    tensors = [(p, g, w) for p, g, w in pairs if isinstance(w, Tensor)]
    for path, g, w in tensors:
        if g.shape != w.shape:
            _fail_shape(it, path, g, w, hints.usual_cause(it, got, path, g, w))
    for path, g, w in tensors:
        if g.dtype != it.dtype_of(w):
            problem = f"{at(path)}wrong dtype: {g.dtype}, needs {it.dtype_of(w)}"
            fail(it, problem.replace("torch.", ""), hint=hints.of_dtype(g))
    for path, g, w in tensors:
        _check_finite(it, path, g, w)
    for path, g, w in pairs:
        if not data.close(g, w, it.tolerance_of(w)):
            problem = f"{at(path)}wrong value{size(it, g, w)}"
            fail(
                it, problem, hint=hints.usual_cause(it, got, path, g, w), shown=shown(it, g, w)
            )


def _pairs(
    it: Check, whole: Any, got: Any, want: Any, path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Leaf by leaf, a list of ids as one; structure and types must agree (tuple = list)."""
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(got) != len(want):
            problem = "too few entries" if len(got) < len(want) else "too many entries"
            problem = f"{at(path)}{problem}{_first_difference(got, want)}"
            fail(it, problem, hint=hints.known(it, whole), shown=around(got, want))
        inside = [
            pair
            for i, (g, w) in enumerate(zip(got, want, strict=True))
            for pair in _pairs(it, whole, g, w, f"{path}[{i}]")
        ]
        yield from [(path, got, want)] if data.is_listing(want) else inside
    elif isinstance(want, dict) and isinstance(got, dict):
        if set(got) != set(want):
            fail(it, f"{at(path)}wrong keys", shown=both(list(got), list(want)))
        for key in want:
            yield from _pairs(it, whole, got[key], want[key], f"{path}[{key!r}]")
    else:
        _check_type(it, path, got, want)
        yield path, got, want


def _first_difference(got: Sequence, want: Sequence) -> str:
    i = different(got, want)
    if i < min(len(got), len(want)):
        return f", and the first difference is at [{i}]"
    return ", but those up to the shorter's end are right"


def _check_type(it: Check, path: str, got: Any, want: Any) -> None:
    if isinstance(want, Tensor):
        right = type(got) in (Tensor, torch.nn.Parameter) and kind(got) == "a tensor"
    elif isinstance(want, float):
        right = type(got) in (int, float)
    else:
        right = type(got) is type(want)
    if not right:
        problem = f"{at(path)}returned {kind(got)}, needs {kind(want)}"
        fail(it, problem, hint=hints.of_type(got, want), shown=f"got  {show(got)}")


def _check_kind(it: Check, got: Any) -> None:
    right = it.kind is None or issubclass(type(got), it.kind)
    if not right or (type(got) is bool and it.kind in (int, float)):
        assert it.kind is not None
        wanted = "a tensor" if it.kind is Tensor else f"a {it.kind.__name__}"
        hint = hints.of_type(got, ANYTHING)
        fail(it, f"returned {kind(got)}, needs {wanted}", hint=hint, shown=f"got  {show(got)}")


def _fail_shape(it: Check, path: str, got: Tensor, want: Tensor, hint: str) -> None:
    named = len(it.axes) == want.dim()
    if got.dim() == want.dim():
        off = [i for i in range(got.dim()) if got.shape[i] != want.shape[i]]
        problem = "wrong size of axis " + ", ".join(
            it.axes[i] if named else str(i) for i in off
        )
    else:
        problem = f"wrong number of axes: {got.dim()}, needs {want.dim()}"
    problem += f" of [{', '.join(it.axes)}]" if named else ""
    shapes = f"expected shape  {list(want.shape)}\ngot shape       {list(got.shape)}"
    fail(it, f"{at(path)}{problem}", hint=hint, shown=shapes)


def _check_finite(it: Check, path: str, got: Tensor, want: Tensor) -> None:
    if not got.is_floating_point():
        return
    bad = ~torch.isfinite(got) & torch.isfinite(want) | torch.isnan(got)
    if bad.any():
        what = "NaN" if torch.isnan(got[bad]).any() else "infinite"
        index = first(it, bad)
        many = count(int(bad.sum()), bad.numel())
        problem = f"{at(path)}{many} {what}{place(it, index)}"
        fail(it, problem, hint=hints.NOT_FINITE[what], shown=both(got, want, index))


def _check_unchanged(it: Check, args: tuple[Any, ...]) -> None:
    names = it.argument_names()
    for name, after, before in zip(names, args, it.args, strict=False):
        if not data.same(_plain(it, after), before):
            hint = "work on a copy: `y = x + 1`, `x.clone()`, `list(x)` rather than x += 1"
            fail(it, f"changed its argument {name} in place", hint=hint)


def _check_gradient(it: Check) -> None:
    """Vector-Jacobian products with one random cotangent, against those of the oracle."""
    mine = data.map_tensors(data.variable, it.args)
    theirs = data.map_tensors(lambda x: data.variable(data.double(x)), it.args)
    names = it.argument_names()
    inputs = [
        (f"{names[i]}{path}", g, w)
        for i in it.grad
        for (path, g), (_, w) in zip(data.leaves(mine[i]), data.leaves(theirs[i]), strict=True)
        if data.is_float(g)
    ]
    want = _vjp(it.expected(*theirs), [w for _, _, w in inputs])
    variables = [g for _, g, _ in inputs]
    got = call(it, mine, then=lambda value: _vjp(data.plain(value), variables))
    if got is None:
        hint = "no detach, item, data, numpy, torch.no_grad or torch.tensor(...) on the way"
        fail(it, "the answer is cut off from its inputs: no gradient", hint=hint)
    sizes = [float(w.abs().max()) for w in want if w is not None and w.numel()]
    largest = max(sizes, default=0.0)
    for (name, x, _), g, w in zip(inputs, got, want, strict=True):
        _compare_gradient(it, name, g, torch.zeros_like(x) if w is None else w, largest)


def _compare_gradient(
    it: Check, name: str, got: Tensor | None, want: Tensor, largest: float
) -> None:
    what = f"wrong gradient with respect to {name}"
    # A gradient that is zero but for rounding (a bias before softmax) is held to the others.
    if not want.numel():
        return
    scale = max(float(want.abs().max()), 1e-3 * largest, 1e-30)
    if got is None and float(want.abs().max()) > 1e-6 * largest:
        hint = f"{name} is not used, or by way of detach, item or torch.tensor(...) only"
        fail(it, f"{what}: there is none", hint=hint)
    if got is None:
        return
    if not torch.isfinite(got).all():
        hint = "inf * 0: a mask after exp, a division by 0, or the root of 0?"
        fail(it, f"{what}: not finite", hint=hint)
    error = (got.double() - want).abs() / scale
    if error.max() > GRADIENT * it.tolerance_of(want):
        hint = hints.factor(got.double(), want.double(), 1e-4)
        hint = hint or "a path cut by detach or torch.no_grad?"
        problem = f"{what}: off by {amount(float(error.max()))} of its largest entry"
        index = (error == error.max()).nonzero()[0].tolist()
        fail(it, problem, hint=hint, shown=both(got, want, index))


def _vjp(value: Any, inputs: list[Tensor]) -> Any:
    """Gradients of all float tensors in value, random cotangents; None if there is no path."""
    random = torch.Generator().manual_seed(0)
    outputs, cotangents = [], []
    for _, x in data.leaves(value):
        if data.is_float(x):
            cotangent = torch.randn(x.shape, generator=random, dtype=torch.float64).to(x.dtype)
            if x.requires_grad:
                outputs.append(x)
                cotangents.append(cotangent)
    if not outputs:
        return None
    return data.product(outputs, inputs, cotangents)
