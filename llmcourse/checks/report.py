"""One check as a whole, and how its outcome is told."""

import contextlib
import contextvars
import inspect
import math
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from llmcourse.checks import data

UNNAMED: set[type] = {  # classes of Python's own that no module holds by their name
    type(None),
    type(lambda: 0),
    type({}.get),
    types.GeneratorType,
    type(len),
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    types.MethodType,
    types.ModuleType,
    types.CoroutineType,
}
Claim = Callable[[Any], bool] | tuple[Callable[[Any], bool], Callable[[Any], str]]
ANYTHING = object()  # no expected answer was given
SHOWN = 24  # numbers of a tensor; of a larger one a part of the row where it goes wrong
ROW = 6  # numbers of such a row
LISTED = 16  # entries of a list that are shown; of a longer one those around the first wrong
WRITTEN = 60  # characters of a string, likewise
COUNT = 1000  # an int from here on is a count, and it says something by how much it is off
LONGEST = 2000  # characters of a learner's own output

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


def is_hidden() -> bool:
    """Whether this is a hidden check."""
    return _hidden.get()


@dataclass
class Check:
    """One check: what it is about and how it judges. The fields are `checks.check`'s."""

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
    holds: dict[str, Claim]
    kind: type | None
    forbid: tuple[str, ...]
    allow: tuple[str, ...]
    file: str = ""
    printed: list[str] = field(default_factory=list)

    @property
    def of_test(self) -> bool:
        """Whether the function is one of the test's own: it stands where the check stands."""
        code = getattr(self.function, "__code__", None)
        return bool(self.file) and getattr(code, "co_filename", "") == self.file

    def oracle(self, expected: Any) -> Any:
        """An expected or mistaken answer; a function gets every float tensor in float64."""
        if not data.is_oracle(expected):
            return data.copy(expected)
        return data.copy(expected(*data.map_tensors(data.double, self.args)))

    def dtype_of(self, want: Tensor) -> torch.dtype:
        """The dtype the answer must have where the expected one is `want`."""
        if not want.is_floating_point():
            return want.dtype
        if self.dtype is not None:
            return self.dtype
        floats = [x.dtype for _, x in data.leaves(self.args) if data.is_float(x)]
        if floats:
            return floats[0]
        return torch.get_default_dtype() if data.is_oracle(self.expected) else want.dtype

    def tolerance_of(self, want: Any) -> float:
        """The given tolerance, or that of the answer's dtype; Python's floats have 64 bits."""
        if self.tolerance is not None:
            return self.tolerance
        dtype = self.dtype_of(want) if isinstance(want, Tensor) else torch.float64
        return data.TOLERANCE.get(dtype, 0.0)

    def argument_names(self) -> list[str]:
        """Of the function's signature; numbers where a stand-in does not tell."""
        numbered = [f"number {i + 1}" for i in range(len(self.args))]
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except Exception:  # a callable object of the learner's may do anything
            return numbered
        names = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return names if len(names) >= len(numbered) else numbered


def fail(it: Check, problem: str, *, hint: str = "", shown: str = "") -> NoReturn:
    """Raise CheckFailed: the quantity and the problem, a hint, and what visible checks show."""
    what = f"{it.name} ({it.case})" if it.case else it.name
    lines = [f"{what}: {problem}"] + ([f"hint: {hint}"] if hint else [])
    details = "\n".join([*lines, shown])
    if is_hidden():
        lines[0] = f"hidden check of {lines[0]}"
    else:
        _show_back(it)
        lines += [shown] if shown else []
    raise CheckFailed("\n".join(lines), details) from None


def say_ok(it: Check) -> None:
    """One line on standard output; nothing where the check is hidden."""
    if not is_hidden():
        _show_back(it)
        print(f"ok: {it.name}{', ' + it.case if it.case else ''}")


def _show_back(it: Check) -> None:
    """What the learner's code printed, of the first call: the others repeat it."""
    text = "".join(it.printed[:1])
    if text.strip():
        print(text[:LONGEST].rstrip("\n") + (" ..." if len(text) > LONGEST else ""))


def at(path: str) -> str:
    """Where in nested data: "entry ['keys']: "; nothing for the whole."""
    return f"entry {path}: " if path else ""


def first(it: Check, wrong: Tensor) -> list[int]:
    """The first wrong index, the earliest position along T before anything else."""
    index = wrong.nonzero()
    if len(it.axes) == wrong.dim() and "T" in it.axes:
        t = index[:, it.axes.index("T")]
        index = index[t == t.min()]
    numbers: list[int] = index[0].tolist()
    return numbers


def place(it: Check, index: list[int]) -> str:
    """ ", first at B=0, T=3, D=1"; nothing for a tensor without axes."""
    if not index:
        return ""
    if len(it.axes) != len(index):
        return f", first at {index}"
    pairs = zip(it.axes, index, strict=True)
    return f", first at {', '.join(f'{letter}={i}' for letter, i in pairs)}"


def size(it: Check, got: Any, want: Any) -> str:
    """How far off and where first."""
    if isinstance(want, Tensor):
        wrong = data.wrong(got, want, it.tolerance_of(want))
        where = place(it, first(it, wrong))
        if not want.is_floating_point():
            return f": {count(int(wrong.sum()), wrong.numel())}{where}"
        error = float((got.double() - want.double()).abs().nan_to_num(0.0).max())
        return f": off by {amount(error / data.scale(want))} of the largest entry{where}"
    if isinstance(want, str):
        right = different(got, want)
        if right == len(got):
            return f": its {right} characters are right, but more must follow"
        if right == len(want):
            return f": the first {right} characters are right, and all there should be"
        return f": the first {right} characters are right, the next is not"
    if isinstance(want, (list, tuple)):
        pairs = enumerate(zip(got, want, strict=True))
        bad = [i for i, (g, w) in pairs if not data.close(g, w, 0.0)]
        return f": {count(len(bad), len(want))}, first at [{bad[0]}]"
    return _percent(got, want)


def _percent(got: Any, want: Any) -> str:
    """How far off a float is, or a count; a small int may be an id, and ids are not near."""
    if isinstance(want, float) and not abs(got) < math.inf:
        return f": it is {got}"
    if isinstance(want, bool) or not want or (isinstance(want, int) and abs(want) < COUNT):
        return ""
    if not abs(got) < 1e6 * abs(want):
        return ": off by far"
    if is_hidden():
        return f": off by {amount(abs(got - want) / abs(want))} of what it should be"
    percent = 100 * abs(got - want) / abs(want)
    return f": off by {percent:.0f}%" if percent >= 10 else f": off by {percent:.2g}%"


def amount(x: float) -> str:
    """How far off; in a hidden check the order of magnitude, as digits could tell an input."""
    if not is_hidden():
        return f"{x:.2g}"
    power = round(math.log10(min(10.0, max(1e-9, x))))
    return f"about {10.0**power:g}"


def count(some: int, of: int) -> str:
    """How many entries; in a hidden check only whether it is all of them."""
    number = "some" if some < of else "all"
    return f"{number if is_hidden() else some} of {of} entries"


def different(got: Sequence, want: Sequence) -> int:
    """The first index where two strings or lists differ, or the shorter one's length."""
    pairs = enumerate(zip(got, want, strict=False))
    shorter = min(len(got), len(want))
    return next((i for i, (g, w) in pairs if not data.same(g, w)), shorter)


def shown(it: Check, got: Any, want: Any) -> str:
    """Expected and got, for a visible check."""
    if isinstance(want, (str, list, tuple)):
        return around(got, want)
    if not isinstance(want, Tensor):
        off = got - want if type(got) is type(want) is int and abs(want) >= COUNT else 0
        note = f"  ({abs(off)} too {'many' if off > 0 else 'few'})" if abs(off) < 10**18 else ""
        return both(got, want) + (note if off else "")
    return both(got, want, first(it, data.wrong(got, want, it.tolerance_of(want))))


def around(got: Any, want: Any) -> str:
    """Expected and got; of long strings and lists what stands around the first difference."""
    most = WRITTEN if isinstance(want, str) else LISTED
    longer = max(len(got), len(want))
    if longer <= most:
        return both(got, want)
    start = max(0, min(different(got, want) - most // 4, longer - most))
    where = f"at [{start}:{start + most}] "
    got, want = got[start : start + most], want[start : start + most]
    return _lines(where, got, want)


def both(got: Any, want: Any, index: list[int] | None = None) -> str:
    """Expected and got; of a large tensor a few numbers of the row where it goes wrong."""
    where = ""
    if index and want.numel() > SHOWN:
        start = max(0, min(index[-1] - 1, want.shape[-1] - ROW))
        stop = min(start + ROW, want.shape[-1])
        row = (*index[:-1], slice(start, stop))
        where = f"at [{''.join(f'{i}, ' for i in index[:-1])}{start}:{stop}] "
        got, want = got[row], want[row]
    return _lines(where, got, want)


def _lines(where: str, got: Any, want: Any) -> str:
    return f"expected {where} {show(want)}\ngot      {' ' * len(where)} {show(got)}"


def show(value: Any) -> str:
    """A value in at most some ten lines."""
    try:
        text = _write(value)
    except Exception:  # a learner's object; an int of thousands of digits; a sparse tensor
        text = f"<{of_class(type(value))}>"
    text = text if len(text) <= 600 else f"{text[:600]} ..."
    lines = [line for line in text.splitlines() if line.strip()]
    return ("\n" + " " * 10).join(lines) or text


def _write(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.detach()
        value = (value.double() if value.is_floating_point() else value).numpy()
    if isinstance(value, np.ndarray):
        return np.array2string(
            value, precision=5, suppress_small=True, threshold=SHOWN, edgeitems=2
        )
    plain = data.map_tensors(lambda x: x.tolist() if x.numel() <= SHOWN else "tensor", value)
    return repr(plain)


def kind(value: Any) -> str:
    """A value's type in words."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        if value.device.type != "cpu":
            return f"a tensor on device {value.device.type}"
        strided = value.layout == torch.strided and not value.is_nested
        return "a tensor" if strided else "a sparse or nested tensor"
    if isinstance(value, np.ndarray):
        return "a numpy array"
    name = of_class(type(value))
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def of_class(kind: type) -> str:
    """A class's name; in a hidden check that of a known one, for others may be made to tell."""
    if not is_hidden() or is_known(kind):
        return kind.__name__
    known = next(base for base in kind.__mro__ if is_known(base))
    return "object" if known is object else known.__name__


def is_known(kind: type) -> bool:
    """Whether a class comes from an imported module under its own name, not from a notebook."""
    name, module = kind.__name__, kind.__module__
    if module == "__main__" or not isinstance(module, str):
        return False
    where = vars(sys.modules[module]) if module in sys.modules else {}
    return where.get(name) is kind or getattr(types, name, None) is kind or kind in UNNAMED
