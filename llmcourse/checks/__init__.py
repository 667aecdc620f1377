"""What a learner sees: a check calls their function and says in a few lines what is wrong.

A check looks, in this order, at type, shape, dtype, finiteness, value, inputs left unchanged
and gradient; it stops at the first that fails and names the quantity, the size of the error,
where it first goes wrong, and one hint at the usual cause. Nothing but data goes to a learner's
function and comes back from it: tensors, numbers, booleans, strings, None, and lists and dicts
of these. So the function may as well be a stand-in that runs the learner's code in another
process.

An answer counts as what it holds: subclasses are stripped to plain data, and no method of
theirs is asked.

Visible checks print one line when all is well, and show expected and got when it is not.
Inside `with hidden():` neither is ever shown.

Where a learner runs it, a check shares their process, and sees the ways round it that a mistake
or an idle hand finds. Against malice it is no lock there: code in the same process can replace
torch or these functions, read expected values and hidden inputs from the call stack, stop every
watch with compiled code or another process, and write down what it saw. What counts for a grade
is checked from another process (llmcourse.grading).
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from llmcourse.checks import data, judge
from llmcourse.checks.inputs import Rng, rng
from llmcourse.checks.report import ANYTHING, Check, CheckFailed, Claim, hidden, say_ok

__all__ = ["CheckFailed", "Rng", "check", "hidden", "rng"]


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
    holds: dict[str, Claim] | None = None,
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
    tolerance  of max|got - expected| / max|expected|; by dtype when None (data.TOLERANCE)
    dtype      of the answer's float tensors; the first float tensor argument's when None
    grad       indices of the arguments whose gradients are checked, every float tensor inside
               them; True for all. `expected` must then be a function
    causal_in  index of the argument in which the answer must be causal, along the axis that T
               has in `axes`: looked at when the value is wrong, for the hint
    mistakes   {hint: wrong answer, or a function that computes it}: the hint is given to the
               learner whose answer is that one
    holds      {claim: predicate}: what the answer must fulfil, for more than one right answer;
               or {claim: (predicate, explain)}: explain(answer) is a line, for visible checks,
               that tells where the answer fails
    kind       the answer's type where `expected` is not given: str, list, torch.Tensor ...
    forbid     torch functions that the learner may not call: ("layer_norm",)
    allow      modules of this package that the learner may call; all others are refused
    """
    frame = sys._getframe(1)
    if grad is True:
        grad = [
            i for i, a in enumerate(args) if any(data.is_float(x) for _, x in data.leaves(a))
        ]
    it = Check(
        function=function,
        args=args,
        expected=expected,
        name=name or _name(function, frame.f_globals),
        case=case,
        axes=axes.split(),
        tolerance=tolerance,
        dtype=dtype,
        grad=tuple(grad or ()),
        causal_in=causal_in,
        mistakes=mistakes or {},
        holds=holds or {},
        kind=kind,
        forbid=tuple(forbid),
        allow=tuple(allow),
        file=frame.f_code.co_filename,
    )
    if it.grad and not data.is_oracle(expected):
        raise ValueError("grad needs a function as `expected`: gradients come from it")
    if isinstance(expected, type) and issubclass(expected, BaseException):
        judge.raises(it)
    else:
        judge.answer(it)
    say_ok(it)


def _name(function: Callable[..., Any], known: dict[str, Any]) -> str:
    """What a function is called where it is checked, also a lambda or a decorated one."""
    own = str(getattr(function, "__name__", ""))
    names = [n for n, value in known.items() if value is function and not n.startswith("_")]
    name = own if own in names or not names else names[0]
    return name if re.fullmatch(r"\w{1,60}|<lambda>", name) else "the function"
