"""What a learner sees: a check calls their function and says in a few lines what is wrong.

A check looks, in this order, at type, shape, dtype, finiteness, value, inputs left unchanged
and gradient; it stops at the first that fails and names the quantity, the size of the error,
where it first goes wrong, and one hint at the usual cause. Nothing but data goes to a learner's
function and comes back from it: tensors, numbers, booleans, strings, None, and lists and dicts
of these. So the function may as well be a stand-in that runs the learner's code in another
process.

Visible checks print one line when all is well, and show expected and got when it is not.
Inside `with hidden():` neither is ever shown.
"""

import contextlib
import contextvars
import hashlib
import inspect
import io
import itertools
import logging
import math
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

PACKAGE = Path(__file__).resolve().parent
ANYTHING = object()
# Relative to the largest expected value; other orders of summation stay below ten roundings.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
}
DEEPEST = 16  # of nested lists and dicts that still count as data
SHOWN = 24  # numbers of a tensor; of a larger one the row where it goes wrong
AXES = {"B": "sequence of the batch", "T": "position", "H": "head"}
ROW = 6  # numbers shown of such a row
LONGEST = 2000  # characters of a learner's own output that a visible check shows back

_hidden: contextvars.ContextVar[bool] = contextvars.ContextVar("hidden", default=False)


class CheckFailed(AssertionError):  # noqa: N818, it judges an answer and is no error
    """A check that failed; IPython shows `str(error)` alone, without a traceback.

    `details` is for the instructor: expected and got, also where the message hides them.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Checks inside never show an input, an expected value, or a line of the test.

    Whatever else goes wrong inside ends as a CheckFailed that tells its class alone.
    """
    token = _hidden.set(True)
    try:
        yield
    except CheckFailed:
        raise
    except Exception as error:
        text = f"a hidden check could not run: {type(error).__name__}"
        raise CheckFailed(text, "".join(traceback.format_exception(error))) from None
    finally:
        _hidden.reset(token)


class Rng:
    """Random tensors that depend on the words, and on the course's secret salt, alone."""

    def __init__(self, *words: str | int) -> None:
        text = "|".join(map(str, (*words, os.environ.get("LLMCOURSE_SALT", ""))))
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        self.generator = torch.Generator().manual_seed(seed)

    def normal(
        self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Normal numbers with mean 0; drawn in float64, so that dtypes share their values."""
        draw = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return (std * draw).to(dtype)

    def uniform(
        self,
        *shape: int,
        low: float = 0.0,
        high: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """Uniform numbers in [low, high)."""
        draw = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return (low + (high - low) * draw).to(dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Uniform int64 in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator)


def rng(*words: str | int) -> Rng:
    """A generator named by words: `rng("02_gpt2", "gelu", 1)`.

    The course's salt (environment variable LLMCOURSE_SALT, set by nbgrader_config.py; empty
    when unset) is mixed in, so that nobody can work out the inputs of a hidden check.
    """
    return Rng(*words)


@dataclass
class _Check:
    """One check: what it is about and how it judges. The fields are `check`'s arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    expected: Any
    name: str
    case: str
    axes: list[str]
    tolerance: float | None
    dtype: torch.dtype | None
    grad: Sequence[int]
    causal_in: int | None
    mistakes: dict[str, Any]
    holds: dict[str, Callable[[Any], bool]]
    kind: type | None
    forbid: tuple[str, ...]
    allow: tuple[str, ...]
    printed: list[str] = field(default_factory=list)


def check(
    function: Callable[..., Any],
    *args: Any,
    expected: Any = ANYTHING,
    name: str | None = None,
    case: str = "",
    axes: str = "",
    tolerance: float | None = None,
    dtype: torch.dtype | None = None,
    grad: bool | Sequence[int] = (),
    causal_in: int | None = None,
    mistakes: dict[str, Any] | None = None,
    holds: dict[str, Callable[[Any], bool]] | None = None,
    kind: type | None = None,
    forbid: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> None:
    """Call `function(*args)`, a learner's, and raise CheckFailed where the answer is wrong.

    function   a learner's function, or one of the test's that calls learners' things with data
    args       data; the function gets copies, and must leave them as they are
    expected   the right answer: data; or a function of the same arguments, called with every
               float tensor in float64; or a class of exceptions that the call must raise
    name       the quantity in messages; the function's name when None
    case       what is special about these arguments, in a few words: "odd length"
    axes       letters of the answer's axes, "B T D": places in it are told by them, T's first
    tolerance  of max|got - expected| / max|expected|; by dtype when None (TOLERANCE)
    dtype      of the answer's float tensors; the first float tensor argument's when None
    grad       indices of the arguments whose gradients are checked, every float tensor inside
               them; True for all. `expected` must then be a function
    causal_in  index of the argument in which the answer must be causal, along the axis that T
               has in `axes`: looked at when the value is wrong, for the hint
    mistakes   {hint: wrong answer, or a function that computes it}: the hint is given to the
               learner whose answer is that one
    holds      {claim: predicate}: what the answer must fulfil, for more than one right answer
    kind       the answer's type where `expected` is not given: str, list, torch.Tensor ...
    forbid     torch functions that the learner may not call: ("layer_norm",)
    allow      modules of this package that the learner may call; all others are refused
    """
    if grad is True:
        grad = [i for i, arg in enumerate(args) if any(_is_float(x) for _, x in _leaves(arg))]
    it = _Check(
        function,
        args,
        expected,
        name or str(getattr(function, "__name__", "the function")),
        case,
        axes.split(),
        tolerance,
        dtype,
        tuple(grad or ()),
        causal_in,
        mistakes or {},
        holds or {},
        kind,
        tuple(forbid),
        tuple(allow),
    )
    if it.grad and not _is_oracle(expected):
        raise ValueError("grad needs a function as `expected`: gradients come from it")
    if isinstance(expected, type) and issubclass(expected, BaseException):
        _check_raises(it)
    else:
        _check_answer(it)
    if not _hidden.get():
        _show_back(it)
        print(f"ok: {it.name}{', ' + case if case else ''}")


def _check_answer(it: _Check) -> None:
    args = _copy(it.args)
    got = _copy(_call(it, args))
    wanted = _oracle(it, it.expected)
    if wanted is ANYTHING:
        _check_kind(it, got)
    else:
        _compare(it, got, wanted)
    for claim, predicate in it.holds.items():
        if not predicate(_copy(got)):
            _fail(it, f"it does not hold that {claim}", shown=f"got  {_show(got)}")
    _check_unchanged(it, args)
    if it.grad:
        _check_gradient(it)


def _check_raises(it: _Check) -> None:
    """The call must raise `expected`; compared by name, which is what a stand-in sends."""
    error = None
    try:
        value = _call(it, _copy(it.args), convert=False)
    except Exception as raised:
        if isinstance(raised, CheckFailed):
            raise
        error = raised
    wanted = it.expected.__name__
    if error is None:
        _fail(it, f"must raise {wanted} here, but returned", shown=f"got  {_show(value)}")
    elif wanted not in [c.__name__ for c in type(error).__mro__]:
        _fail_with(it, error, f"must raise {wanted} here, but raised")


# --- calling a learner's function -------------------------------------------------------------


class _Watch(TorchFunctionMode):
    """Remembers which forbidden torch functions were called."""

    def __init__(self, forbidden: tuple[str, ...]) -> None:
        super().__init__()
        self.forbidden = forbidden
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]
        if name in self.forbidden:
            self.seen.append(f"torch's {name}")
        return func(*args, **(kwargs or {}))


class _Profile:
    """Remembers which modules of this package ran."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self.allow = (*allow, "llmcourse.checks", "llmcourse.grading")  # these call for us
        self.seen: list[str] = []
        self.root = f"{PACKAGE}{os.sep}"

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(self.root):
            return
        parts = Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("").parts
        module = ".".join(("llmcourse", *(p for p in parts if p != "__init__")))
        if not any(module == a or module.startswith(f"{a}.") for a in self.allow):
            self.seen.append(module)


@contextlib.contextmanager
def _quiet(sink: io.StringIO) -> Iterator[None]:
    """Catch what a learner's code prints: nbgrader reads anything on stderr as a failure."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a handler made earlier holds the kernel's own stderr
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), _no_stderr():
        try:
            yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Drop what compiled code writes to the file descriptor itself."""
    try:
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # no standard error to begin with
        yield
        return
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _call(
    it: _Check, args: Any, *, convert: bool = True, then: Callable[[Any], Any] | None = None
) -> Any:
    """`then(function(*args))`, guarded; what it raises becomes a CheckFailed if `convert`."""
    sink, watch, profile = io.StringIO(), _Watch(it.forbid), _Profile(it.allow)
    error = value = None
    before = sys.getprofile()
    try:
        with _quiet(sink), watch:
            sys.setprofile(profile)
            try:
                value = it.function(*args)
                value = then(value) if then else value
            finally:
                sys.setprofile(before)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # also SystemExit: `exit()` in an answer ends no kernel
        error = raised
    it.printed.append(sink.getvalue())
    if profile.seen or watch.seen:
        _fail(it, f"calls {(profile.seen + watch.seen)[0]}, which is what you are to write")
    if isinstance(error, NotImplementedError):
        _fail(it, "is not written yet: it still raises NotImplementedError")
    if error is not None and convert:
        _fail_with(it, error, "raised")
    if error is not None:
        raise error
    return value


def _fail_with(it: _Check, error: BaseException, what: str) -> None:
    """The learner's exception: its class, its text, and the line of theirs it came from."""
    own = _own_line(error)
    shown = f"{error}" + (f"\nin your line  {own}" if own else "")
    hint = ""
    if isinstance(error, RecursionError):
        hint = "it calls itself without end"
    elif "in-place operation" in str(error) or "modified by an inplace" in str(error):
        hint = "it changes a tensor in place that the gradient still needs: make a new one"
    _fail(it, f"{what} {type(error).__name__}", hint=hint, shown=shown)


def _own_line(error: BaseException) -> str:
    """The innermost line that belongs to neither this package nor an installed one."""
    paths = sysconfig.get_paths()
    foreign = (str(PACKAGE), paths["stdlib"], paths["purelib"], paths["platlib"], "<frozen")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(foreign):
            return frame.line or ""
    return ""


def _show_back(it: _Check) -> None:
    text = "".join(it.printed[:1])
    if text.strip():
        print(text[:LONGEST].rstrip("\n") + (" ..." if len(text) > LONGEST else ""))


def _fail(it: _Check, problem: str, *, hint: str = "", shown: str = "") -> None:
    what = f"{it.name} ({it.case})" if it.case else it.name
    lines = [f"{what}: {problem}"] + ([f"hint: {hint}"] if hint else [])
    details = "\n".join([*lines, shown])
    if _hidden.get():
        lines[0] = f"hidden check of {lines[0]}"
    else:
        _show_back(it)
        lines += [shown] if shown else []
    raise CheckFailed("\n".join(lines), details) from None


# --- data -------------------------------------------------------------------------------------


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _is_oracle(x: Any) -> bool:
    return callable(x) and not isinstance(x, type)


def _map(change: Callable[[torch.Tensor], Any], data: Any, depth: int = 0) -> Any:
    """The same data with `change` applied to every tensor; containers are new."""
    if isinstance(data, torch.Tensor):
        return change(data)
    if depth < DEEPEST and isinstance(data, (list, tuple)):
        items = [_map(change, x, depth + 1) for x in data]
        return tuple(items) if isinstance(data, tuple) else items
    if depth < DEEPEST and isinstance(data, dict):
        return {key: _map(change, x, depth + 1) for key, x in data.items()}
    return data


def _copy(data: Any) -> Any:
    return _map(lambda x: x.detach().clone(), data)


def _leaves(data: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(path, leaf) for everything in data that is not a list, tuple or dict."""
    if depth < DEEPEST and isinstance(data, (list, tuple)):
        for i, x in enumerate(data):
            yield from _leaves(x, f"{path}[{i}]", depth + 1)
    elif depth < DEEPEST and isinstance(data, dict):
        for key, x in data.items():
            yield from _leaves(x, f"{path}[{key!r}]", depth + 1)
    else:
        yield path, data


def _oracle(it: _Check, expected: Any) -> Any:
    """The expected answer; a function gets every float tensor in float64."""
    if not _is_oracle(expected):
        return expected
    return _copy(expected(*_map(_double, it.args)))


def _double(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone()
    return x.double() if x.is_floating_point() else x


def _dtype_of(it: _Check, want: torch.Tensor) -> torch.dtype:
    """The dtype the answer must have where the expected one is `want`."""
    if not want.is_floating_point():
        return want.dtype
    if it.dtype is not None:
        return it.dtype
    floats = [x.dtype for _, x in _leaves(it.args) if _is_float(x)]
    if floats:
        return floats[0]
    return torch.get_default_dtype() if _is_oracle(it.expected) else want.dtype


# --- judging ----------------------------------------------------------------------------------


def _compare(it: _Check, got: Any, want: Any) -> None:
    """Type, shape, dtype, finite, value: each of everything before the next of anything."""
    pairs = list(_pairs(it, got, want, ""))
    tensors = [(p, g, w) for p, g, w in pairs if isinstance(w, torch.Tensor)]
    for path, g, w in tensors:
        if g.shape != w.shape:
            _fail_shape(it, path, g, w, _usual_cause(it, got, path, g, w))
    for path, g, w in tensors:
        if g.dtype != _dtype_of(it, w):
            problem = f"{_at(path)}wrong dtype: {g.dtype}, needs {_dtype_of(it, w)}"
            _fail(it, problem.replace("torch.", ""), hint=_dtype_hint(g))
    for path, g, w in tensors:
        _check_finite(it, path, g, w)
    for path, g, w in pairs:
        if not _close(g, w, _tolerance(it, w)):
            hint = _usual_cause(it, got, path, g, w)
            _fail(
                it,
                f"{_at(path)}wrong value{_size(it, g, w)}",
                hint=hint,
                shown=_shown(it, g, w),
            )


def _pairs(it: _Check, got: Any, want: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Leaf by leaf; structure and types must agree (a tuple is as good as a list)."""
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(got) != len(want):
            problem = "too few entries" if len(got) < len(want) else "too many entries"
            problem = f"{_at(path)}{problem}{_first_difference(got, want)}"
            _fail(it, problem, hint=_known(it, got), shown=_both(got, want))
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            yield from _pairs(it, g, w, f"{path}[{i}]")
    elif isinstance(want, dict) and isinstance(got, dict):
        if set(got) != set(want):
            _fail(it, f"{_at(path)}wrong keys", shown=_both(list(got), list(want)))
        for key in want:
            yield from _pairs(it, got[key], want[key], f"{path}[{key!r}]")
    else:
        _check_type(it, path, got, want)
        yield path, got, want


def _check_type(it: _Check, path: str, got: Any, want: Any) -> None:
    kinds: tuple[type, ...] = (type(want),)
    if isinstance(want, torch.Tensor):
        kinds = (torch.Tensor, torch.nn.Parameter)
        right = type(got) in kinds
    elif isinstance(want, float):
        right = isinstance(got, (int, float)) and not isinstance(got, bool)
    else:
        right = isinstance(got, kinds) and isinstance(got, bool) == isinstance(want, bool)
    if not right:
        needs = f"{_at(path)}returned {_kind(got)}, needs {_kind(want)}"
        _fail(it, needs, hint=_type_hint(got, want), shown=f"got  {_show(got)}")


def _check_kind(it: _Check, got: Any) -> None:
    if it.kind is not None and not isinstance(got, it.kind):
        wanted = "a tensor" if it.kind is torch.Tensor else f"a {it.kind.__name__}"
        _fail(it, f"returned {_kind(got)}, needs {wanted}", hint=_type_hint(got, ANYTHING))


def _check_finite(it: _Check, path: str, got: torch.Tensor, want: torch.Tensor) -> None:
    if not got.is_floating_point():
        return
    bad = ~torch.isfinite(got) & torch.isfinite(want) | torch.isnan(got)
    if bad.any():
        kind = "NaN" if torch.isnan(got[bad]).any() else "infinite"
        hint = (
            "0/0, exp of a large number, or softmax of nothing but -inf?"
            if kind == "NaN"
            else "divided by 0?"
        )
        first = _first(it, bad)
        count = f"{int(bad.sum())} of {bad.numel()} entries"
        problem = f"{_at(path)}{count} {kind}, first at {_place(it, first)}"
        _fail(it, problem, hint=hint, shown=_both(got, want, first))


def _check_unchanged(it: _Check, args: tuple[Any, ...]) -> None:
    names = _argument_names(it)
    for i, (after, before) in enumerate(zip(args, it.args, strict=True)):
        if not _same(after, before):
            hint = "work on a copy: `y = x + 1`, `x.clone()`, `list(x)` rather than x += 1"
            _fail(it, f"changed its argument {names[i]} in place", hint=hint)


def _check_gradient(it: _Check) -> None:
    """Vector-Jacobian products with one random cotangent, against those of the oracle."""
    mine, theirs = _map(_leaf, it.args), _map(_double_leaf, it.args)
    names = [
        (f"{_argument_names(it)[i]}{path}", g, w)
        for i in it.grad
        for (path, g), (_, w) in zip(_leaves(mine[i]), _leaves(theirs[i]), strict=True)
        if _is_float(g)
    ]
    want = _vjp(it.expected(*theirs), [w for _, _, w in names])
    got = _call(it, mine, then=lambda value: _vjp(value, [g for _, g, _ in names]))
    if got is None:
        hint = (
            "no .detach(), .item(), .data, numpy, torch.no_grad or torch.tensor(...) on the way"
        )
        _fail(it, "the answer is cut off from its inputs: no gradient", hint=hint)
    largest = max(float(w.abs().max()) for w in want if w is not None and w.numel())
    for (name, x, _), g, w in zip(names, got, want, strict=True):
        _compare_gradient(it, name, x, g, w, largest)


def _compare_gradient(
    it: _Check, name: str, x: torch.Tensor, got: Any, want: Any, largest: float
) -> None:
    what = f"wrong gradient with respect to {name}"
    want = torch.zeros_like(x, dtype=torch.float64) if want is None else want
    # A gradient that is zero but for rounding (a bias before softmax) is held to the others.
    scale = max(float(want.abs().max()), 1e-3 * largest, 1e-30)
    if got is None and float(want.abs().max()) > 1e-6 * largest:
        hint = f"{name} is not used, or by way of detach, item or torch.tensor(...) only"
        _fail(it, f"{what}: there is none", hint=hint)
    if got is None:
        return
    if not torch.isfinite(got).all():
        hint = "inf * 0: a mask after exp, a division by 0, or the root of 0?"
        _fail(it, f"{what}: not finite", hint=hint)
    error = (got.double() - want).abs() / scale
    if error.max() > 10 * _tolerance(it, want):  # a backward pass sums twice as often
        hint = _factor(got.double(), want, 1e-4) or "a path cut by detach or torch.no_grad?"
        problem = f"{what}: off by {float(error.max()):.2g} of its largest entry"
        index = (error == error.max()).nonzero()[0].tolist()
        _fail(it, problem, hint=hint, shown=_both(got, want, index))


def _leaf(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone()
    return x.requires_grad_() if x.is_floating_point() else x


def _double_leaf(x: torch.Tensor) -> torch.Tensor:
    return _leaf(_double(x))


def _vjp(value: Any, inputs: list[torch.Tensor]) -> Any:
    """Gradients of all float tensors in value, random cotangents; None if there is no path."""
    random = torch.Generator().manual_seed(0)
    outputs, cotangents = [], []
    for _, x in _leaves(value):
        if _is_float(x):
            cotangent = torch.randn(x.shape, generator=random, dtype=torch.float64).to(x.dtype)
            if x.requires_grad:
                outputs.append(x)
                cotangents.append(cotangent)
    if not outputs:
        return None
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)


def _tolerance(it: _Check, want: Any) -> float:
    if it.tolerance is not None:
        return it.tolerance
    dtype = _dtype_of(it, want) if isinstance(want, torch.Tensor) else torch.float64
    return TOLERANCE.get(dtype, 0.0)


def _close(got: Any, want: Any, tolerance: float) -> bool:
    if isinstance(want, torch.Tensor):
        return bool((_wrong(got, want, tolerance) == 0).all())
    if isinstance(want, float):
        return math.isclose(got, want, rel_tol=tolerance, abs_tol=1e-300) or got == want
    return bool(got == want)


def _wrong(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> torch.Tensor:
    """True where an entry is further off than tolerance times the largest expected."""
    if not want.is_floating_point():
        return got != want
    got, want = got.double(), want.double()
    error = torch.where(got == want, 0.0, (got - want).abs())  # inf - inf is NaN
    return ~(error <= tolerance * _scale(want))


def _scale(want: torch.Tensor) -> float:
    finite = want[torch.isfinite(want)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return largest or 1.0


def _same(a: Any, b: Any) -> bool:
    """Bit for bit, structure included: for inputs after the call."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    return type(a) is type(b) and (a is b or bool(a == b))


def _argument_names(it: _Check) -> list[str]:
    numbered = [f"number {i + 1}" for i in range(len(it.args))]
    try:
        names = list(inspect.signature(it.function).parameters)
    except (TypeError, ValueError):  # a stand-in need not tell
        return numbered
    return names if len(names) >= len(numbered) else numbered


# --- saying what is wrong ---------------------------------------------------------------------


def _at(path: str) -> str:
    return f"entry {path}: " if path else ""


def _kind(value: Any) -> str:
    """A value's type in words."""
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, np.ndarray):
        return "a numpy array"
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def _type_hint(got: Any, want: Any) -> str:
    if got is None:
        return "is the `return` missing?"
    if isinstance(got, torch.Tensor) and not isinstance(want, (list, tuple, dict)):
        return "`.item()` makes a number of a tensor with one entry"
    if isinstance(got, torch.Tensor):
        return "`.tolist()` makes a list of a tensor"
    if isinstance(got, np.ndarray | np.generic):
        return (
            "stay in torch, or convert at the end: torch.from_numpy(...), int(...), float(...)"
        )
    if isinstance(got, float) and isinstance(want, int):
        return "`//` divides without a remainder and stays an int; `/` makes a float"
    if isinstance(got, bytes) and isinstance(want, str):
        return "bytes.decode makes a str"
    if isinstance(want, torch.Tensor) and isinstance(got, (list, tuple)):
        return "torch.stack or torch.cat makes one tensor of several"
    return ""


def _dtype_hint(got: torch.Tensor) -> str:
    if got.dtype in (torch.float16, torch.bfloat16):
        return "compute in the dtype that came in, not in half precision"
    return "a new tensor (zeros, arange, a mask) takes dtype=x.dtype; float32 is the default"


def _fail_shape(
    it: _Check, path: str, got: torch.Tensor, want: torch.Tensor, hint: str
) -> None:
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
    _fail(it, f"{_at(path)}{problem}", hint=hint, shown=shapes)


def _first_difference(got: Sequence, want: Sequence) -> str:
    for i, (g, w) in enumerate(zip(got, want, strict=False)):
        if not _same(g, w):
            return f", and the first difference is at [{i}]"
    return ", those that are there are right"


def _size(it: _Check, got: Any, want: Any) -> str:
    """How far off and where first."""
    if isinstance(want, torch.Tensor):
        wrong = _wrong(got, want, _tolerance(it, want))
        where = f"first at {_place(it, _first(it, wrong))}" if want.dim() else ""
        if not want.is_floating_point():
            return f": {int(wrong.sum())} of {wrong.numel()} entries, {where}"
        error = float((got.double() - want.double()).abs().nan_to_num(0.0).max()) / _scale(want)
        return f": off by {error:.2g} of the largest entry" + (f", {where}" if where else "")
    if isinstance(want, str):
        same = next(
            (i for i, (g, w) in enumerate(zip(got, want, strict=False)) if g != w),
            min(len(got), len(want)),
        )
        return f": the first {same} characters are right, the next is not"
    if isinstance(want, (int, float)) and not isinstance(want, bool) and want:
        return f": off by {100 * abs(got - want) / abs(want):.2g}%"
    return ""


def _first(it: _Check, wrong: torch.Tensor) -> list[int]:
    """The first wrong index, the earliest position along T before anything else."""
    index = wrong.nonzero()
    if len(it.axes) == wrong.dim() and "T" in it.axes:
        t = index[:, it.axes.index("T")]
        index = index[t == t.min()]
    return index[0].tolist()


def _place(it: _Check, index: list[int]) -> str:
    if len(it.axes) != len(index):
        return str(index)
    return ", ".join(f"{letter}={i}" for letter, i in zip(it.axes, index, strict=True))


def _shown(it: _Check, got: Any, want: Any) -> str:
    if not isinstance(want, torch.Tensor):
        return _both(got, want)
    return _both(got, want, _first(it, _wrong(got, want, _tolerance(it, want))))


def _both(got: Any, want: Any, index: list[int] | None = None) -> str:
    """Expected and got; of a large tensor a few numbers of the row where it goes wrong."""
    where = ""
    if index is not None and want.numel() > SHOWN:
        start = max(0, min(index[-1] - 1, want.shape[-1] - ROW))
        stop = min(start + ROW, want.shape[-1])
        row = (*index[:-1], slice(start, stop))
        where = f"at [{''.join(f'{i}, ' for i in index[:-1])}{start}:{stop}] "
        got, want = got[row], want[row]
    return f"expected {where} {_show(want)}\ngot      {' ' * len(where)} {_show(got)}"


def _show(value: Any) -> str:
    """A value in at most some ten lines."""
    if isinstance(value, torch.Tensor):
        numbers = value.detach().to(torch.float64 if value.is_floating_point() else value.dtype)
        text = np.array2string(
            numbers.numpy(), precision=5, suppress_small=True, threshold=SHOWN, edgeitems=2
        )
    elif isinstance(value, np.ndarray):
        text = np.array2string(value, precision=5, threshold=SHOWN, edgeitems=2)
    else:
        text = repr(_map(lambda x: x.tolist() if x.numel() <= SHOWN else "tensor", value))
    text = text if len(text) <= 600 else f"{text[:600]} ..."
    return text.replace("\n", "\n" + " " * 10)


def _usual_cause(it: _Check, whole: Any, path: str, got: Any, want: Any) -> str:
    """One hint, or none: first the mistakes that the check names, then those anyone makes."""
    known = _known(it, whole)
    if known:
        return known
    if not isinstance(want, torch.Tensor):
        return ""
    if not path and it.causal_in is not None and got.shape == want.shape:
        acausal = _looks_ahead(it)
        if acausal:
            return acausal
    if got.shape != want.shape:
        return _other_order(got, want)
    if not want.is_floating_point():
        return _other_order(got, want) or _shifted(it, got, want)
    return _pattern(it, got.double(), want.double())


def _known(it: _Check, got: Any) -> str:
    for hint, wrong in it.mistakes.items():
        wrong = _oracle(it, wrong)
        if _matches(it, got, wrong):
            return hint
    return ""


def _matches(it: _Check, got: Any, wrong: Any) -> bool:
    mine, theirs = list(_leaves(got)), list(_leaves(wrong))
    return len(mine) == len(theirs) and all(
        p == q and _alike(g, w, max(_tolerance(it, w), 1e-9))
        for (p, g), (q, w) in zip(mine, theirs, strict=True)
    )


def _alike(g: Any, w: Any, tolerance: float) -> bool:
    if isinstance(w, torch.Tensor):
        return isinstance(g, torch.Tensor) and g.shape == w.shape and _close(g, w, tolerance)
    if isinstance(w, (int, float)):
        return isinstance(g, (int, float)) and math.isclose(g, w, rel_tol=tolerance)
    return type(g) is type(w) and bool(g == w)


def _looks_ahead(it: _Check) -> str:
    """Change one token after the other: does an earlier position of the answer notice?"""
    axis = it.axes.index("T")
    assert it.causal_in is not None
    base = it.args[it.causal_in]
    with contextlib.suppress(Exception):
        right = _call(it, _copy(it.args))
        for s in range(1, base.shape[axis]):
            args = list(_copy(it.args))
            token = args[it.causal_in].select(axis, s)
            changed = token + 1 if _is_float(base) else (token + 1) % (int(base.max()) + 1)
            token.copy_(changed)
            other = _call(it, args)
            moved = (right != other).movedim(axis, 0)[:s].flatten(1).any(1)
            if moved.any():
                return f"position {int(moved.nonzero()[0])} depends on token {s}: not causal"
    return ""


def _other_order(got: torch.Tensor, want: torch.Tensor) -> str:
    """The right numbers, but with the axes in another order, or flattened."""
    if got.dim() == want.dim() and 2 <= got.dim() <= 5:
        for order in itertools.permutations(range(got.dim())):
            turned = got.permute(order)
            if list(order) == sorted(order) or turned.shape != want.shape:
                continue
            if not _wrong(turned, want, 1e-5).any():
                return "right numbers, but axes are in another order: transposed?"
    if got.numel() == want.numel() and got.shape != want.shape:
        if not _wrong(got.reshape(want.shape), want, 1e-5).any():
            return "right numbers in another shape: reshape, or keepdim"
        return "as many numbers as there should be, but axes are in another order: transposed?"
    return ""


def _pattern(it: _Check, got: torch.Tensor, want: torch.Tensor) -> str:
    near = max(_tolerance(it, want), 1e-5)
    return (
        _factor(got, want, near)
        or _unchanged(it, got)
        or _other_order(got, want)
        or _shifted(it, got, want)
        or _precision(it, got, want)
        or _part(it, _wrong(got, want, near))
    )


def _factor(got: torch.Tensor, want: torch.Tensor, near: float) -> str:
    """Zero, a constant factor or a constant offset."""
    if not got.any():
        return "all zeros: is the result ever filled in?"
    if want.numel() < 2 or not want.any():
        return ""
    factor = float((got * want).sum() / (want * want).sum())
    if not _wrong(got, factor * want, near).any():
        if abs(factor + 1) < near:
            return "the sign is turned round"
        return f"every entry is {factor:.4g} times what it should be"
    if not _wrong(got - want, (got - want).mean().expand_as(want), near).any():
        return "every entry is off by the same amount"
    return ""


def _unchanged(it: _Check, got: torch.Tensor) -> str:
    for name, arg in zip(_argument_names(it), it.args, strict=False):
        if _is_float(arg) and arg.shape == got.shape and torch.equal(arg.double(), got):
            return f"this is {name} as it came in"
    return ""


def _shifted(it: _Check, got: torch.Tensor, want: torch.Tensor) -> str:
    if "T" not in it.axes or len(it.axes) != want.dim():
        return ""
    g, w = (x.movedim(it.axes.index("T"), 0) for x in (got, want))
    if len(g) < 3:
        return ""
    if not _wrong(g[1:], w[:-1], 1e-5).any():
        return "position t holds what belongs to t - 1: off by one"
    if not _wrong(g[:-1], w[1:], 1e-5).any():
        return "position t holds what belongs to t + 1: off by one"
    return ""


def _precision(it: _Check, got: torch.Tensor, want: torch.Tensor) -> str:
    """Right but for rounding: the error is small against every entry's surroundings."""
    dtype = _dtype_of(it, want)
    error = float((got - want).abs().max()) / _scale(want)
    if not error < 1e-2 or dtype not in (torch.float32, torch.float64):
        return ""
    for half in (torch.bfloat16, torch.float16):
        if torch.equal(got, got.to(half).double()):
            return f"rounded to {str(half)[6:]}: compute in {str(dtype)[6:]} throughout"
    if dtype == torch.float64 and torch.equal(got, got.float().double()):
        return "rounded to float32: compute in the dtype that came in"
    if error < 1e-3:
        return "nearly right: a small constant (eps), an approximation, or half precision?"
    return ""


def _part(it: _Check, wrong: torch.Tensor) -> str:
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
