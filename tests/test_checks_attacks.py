"""What clever learners hand in: odd ways of being right pass, ways round a check do not.

What no check inside a learner's own process can prevent (it may rewrite the checks, or read
them through the call stack) is told in llmcourse.checks and not tried here.
"""

import cProfile
import enum
import functools
import importlib
import logging
import sys
import threading
import types
import warnings
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from llmcourse import checks

X = checks.rng("attack", "x").normal(2, 4, 6)
PARTS = ("layer_norm", "native_layer_norm", "gelu", "softmax")


def scaled(x):
    """The right answer here."""
    return 2 * x


def failure(function, *args, **options):
    with pytest.raises(checks.CheckFailed) as caught:
        checks.check(function, *args, **options)
    return str(caught.value)


class OfMine(torch.Tensor):
    """A subclass that changes nothing."""


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def recursive(x):
    return torch.stack([recursive(row) for row in x]) if x.dim() else x + x


def through_a_thread(x):
    answer = []
    thread = threading.Thread(target=lambda: answer.append(2 * x))
    thread.start()
    thread.join()
    return answer[0]


def with_global_state(x):
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float64)
    return 2 * x


def loud(x):
    for _ in tqdm([1, 2]):
        warnings.warn_explicit("careful", UserWarning, "mine.py", 1)
        logging.getLogger("mine").warning("careful")
        print("here", file=sys.__stderr__)
    return 2 * x


def in_place(x):
    y = x.clone()
    y += x
    return y


def decorated(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def weirdly_hinted(x: "no such thing", *, more: 3 = None) -> ...:  # noqa: F722
    return 2 * x


RIGHT = {
    "float64 inside": lambda x: (2 * x.double()).to(x.dtype),
    "in place on a copy": in_place,
    "a Parameter": lambda x: torch.nn.Parameter(2 * x),
    "needs a gradient": lambda x: (2 * x).requires_grad_(),
    "a view": lambda x: torch.stack([2 * x, x])[0],
    "not contiguous": lambda x: (2 * x).transpose(0, 2).contiguous().transpose(0, 2),
    "expanded": lambda x: (2 * x).unsqueeze(0).expand(1, *x.shape)[0],
    "numpy inside": lambda x: torch.from_numpy(2 * x.numpy()),
    "inference mode": torch.inference_mode()(scaled),
    "no gradient wanted": torch.no_grad()(scaled),
    "a subclass of Tensor": lambda x: (2 * x).as_subclass(OfMine),
    "a module": Doubled(),
    "partial": functools.partial(torch.mul, 2),
    "cached": functools.wraps(scaled)(lambda x: 2 * x),
    "no wraps": decorated(scaled),
    "odd type hints": weirdly_hinted,
    "recursion": recursive,
    "a thread": through_a_thread,
    "global state": with_global_state,
    "loud": loud,
    "eval": lambda x: eval("2 * x"),
    "vmap": torch.func.vmap(lambda row: 2 * row),
}


@pytest.mark.parametrize("way", RIGHT)
def test_unusual_right_answers_are_right(way, capfd):
    with warnings.catch_warnings():
        warnings.showwarning = lambda *text: print(text[0], file=sys.stderr)
        checks.check(RIGHT[way], X, expected=scaled, name="scaled")
    assert capfd.readouterr().err == ""
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("way", ["a subclass of Tensor", "a module", "recursion", "a thread"])
def test_unusual_right_answers_have_the_right_gradient(way):
    checks.check(RIGHT[way], X, expected=scaled, name="scaled", grad=True)


Pair = namedtuple("Pair", "ids text")
Colour = enum.IntEnum("Colour", "RED")
PLAIN = {
    "namedtuple": (Pair([1], "a"), [[1], "a"]),
    "OrderedDict": (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
    "defaultdict": (defaultdict(list, a=[1]), {"a": [1]}),
    "IntEnum": (Colour.RED, 1),
    "numpy's float": (np.float64(0.5), 0.5),
    "numpy's str": (np.str_("a"), "a"),
    "Size": (torch.Size([2, 3]), [2, 3]),
}


@pytest.mark.parametrize("what", PLAIN)
def test_subclasses_count_as_what_they_hold(what):
    answer, expected = PLAIN[what]
    checks.check(lambda: answer, expected=expected)


def yes(self, other=None):
    return True


LIES = {"__eq__": yes, "__ne__": lambda s, o: False, "__hash__": lambda s: 0}


def lying(base, **more):
    return type("Lie", (base,), LIES | more)


class LyingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, kinds, args=(), kwargs=None):
        if func.__name__ in ("detach", "clone"):
            return args[0]
        return torch.zeros((), dtype=torch.bool)


class Agreeable:
    """Whatever it is compared with, whatever is asked of it."""

    __eq__ = yes
    __hash__ = object.__hash__
    __class__ = torch.Tensor
    shape, dtype = X.shape, X.dtype

    def __getattr__(self, name):
        return lambda *_, **__: self


def lying_list():
    claimed = [1, 2, 3]
    return lying(
        list,
        __iter__=lambda s: iter(claimed),
        __len__=lambda s: 3,
        __getitem__=lambda s, i: claimed[i],
    )([9])


def lying_dict():
    return lying(
        dict,
        __iter__=lambda s: iter(["a"]),
        __getitem__=lambda s, k: 1,
        items=lambda s: [("a", 1)],
        keys=lambda s: ["a"],
    )(b=2)


def endless():
    whole = []
    whole.append(whole)
    return whole


def many():
    x = [1]
    for _ in range(12):
        x = [x] * 100
    return x


class Dispatched(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, X.shape)

    @classmethod
    def __torch_dispatch__(cls, func, kinds, args=(), kwargs=None):
        return 2 * X


WRONG = {
    "int": (lambda: lying(int)(3), 4),
    "float": (lambda: lying(float, __sub__=lambda s, o: 0.0)(3), 4.0),
    "str": (lambda: lying(str)("a"), "b"),
    "list": (lying_list, [1, 2, 3]),
    "dict": (lying_dict, {"a": 1}),
    "key": (lambda: {lying(str)("b"): 1}, {"a": 1}),
    "object for int": (lambda: type("Lie", (), LIES | {"__class__": int})(), 4),
    "object for None": (lambda: type("Lie", (), LIES)(), None),
    "object for tensor": (Agreeable, X),
    "in a list": (lambda: [Agreeable()], [X]),
    "tensor": (lambda: torch.zeros_like(X).as_subclass(LyingTensor), X),
    "dispatched": (Dispatched, 2 * X),
    "NaN": (lambda: X * float("nan"), X),
    "float NaN": (lambda: float("nan"), 1.0),
    "Ellipsis": (lambda: ..., 1),
    "bool for float": (lambda: True, 1.0),
    "class": (lambda: torch.Tensor, X),
    "complex": (lambda: X.to(torch.complex64), X),
    "huge": (lambda: torch.zeros(1).expand(10**15), X),
    "huge inside": (lambda: torch.zeros(()).expand(10**6, 10**6), torch.zeros(2, 2)),
    "empty": (lambda: X[:0], X),
    "itself": (endless, [[1]]),
    "exponential": (many, [1]),
    "nothing": (lambda: [], [1]),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_is_judged_by_what_it_holds_not_by_what_it_says(what):
    answer, expected = WRONG[what]
    text = failure(answer, expected=expected, name="mine")
    assert text.startswith("mine: ")
    with checks.hidden():
        assert failure(answer, expected=expected, name="mine").startswith(
            "hidden check of mine"
        )


@pytest.mark.parametrize("what", ["int", "str", "list", "object for int", "huge", "itself"])
def test_claims_are_asked_of_plain_data_too(what):
    answer, expected = WRONG[what]
    text = failure(answer, kind=type(expected), holds={"it is right": lambda x: x == expected})
    assert "it is right" in text or "returned" in text


def test_true_is_no_number_where_only_a_kind_is_asked():
    assert "returned a bool, needs a int" in failure(lambda: True, kind=int)


class OddError(Exception):
    def __str__(self):
        raise ValueError("not even this")


RAISES = {
    "an exception that cannot be told": OddError(),
    "a check's own": checks.CheckFailed("ok"),
    "the end of everything": SystemExit(0),
    "a generator's end": GeneratorExit(),
    "no ordinary exception": type("Mine", (BaseException,), {})(),
}


@pytest.mark.parametrize("what", RAISES)
def test_whatever_is_raised_fails_the_check(what):
    def raises(x):
        raise RAISES[what]

    assert failure(raises, X, expected=X).startswith("raises: raised ")


def test_a_hidden_check_tells_no_name_that_a_learner_makes_up():
    """Or a class named for what came in would tell a hidden input."""

    def tells_by_exception(x):
        raise type(f"saw {x.tolist()}", (ValueError,), {})()

    def tells_by_type(x):
        return type(f"saw {x.tolist()}", (), {"__module__": "builtins"})()

    with checks.hidden():
        assert failure(tells_by_exception, X, expected=X).endswith(": raised ValueError")
        assert "returned an object, needs a tensor" in failure(tells_by_type, X, expected=X)
        scaled_too = decorated(scaled)
        scaled_too.__name__ = f"saw {X.tolist()}"
        assert "saw" not in failure(scaled_too, X, expected=X)


def test_a_lambda_or_wrapped_function_has_the_name_it_is_known_by():
    globals()["shown"] = lambda x: 3 * x
    globals()["wrapped"] = decorated(lambda x: 3 * x)
    try:
        assert failure_of("shown").startswith("shown: wrong value")
        assert failure_of("wrapped").startswith("wrapped: wrong value")
    finally:
        del globals()["shown"], globals()["wrapped"]


def failure_of(name):
    with pytest.raises(checks.CheckFailed) as caught:
        checks.check(globals()[name], X, expected=scaled)
    return str(caught.value)


def test_arguments_given_on_are_told_by_number():
    def adds(*args):
        args[0].add_(1)
        return args[0]

    assert "changed its argument number 1 in place" in failure(
        adds, X, expected=lambda x: x + 1
    )


def test_an_argument_that_was_turned_into_a_lie_is_changed():
    def turns(x):
        answer = 2 * x
        x.zero_()
        x.__class__ = LyingTensor
        return answer

    assert "changed its argument x in place" in failure(turns, X, expected=scaled)


def layer(x):
    from llmcourse.layers.norm import LayerNorm

    with torch.no_grad():
        return LayerNorm(x.shape[-1])(x)


def in_a_thread(function):
    def run(x):
        answer = []
        thread = threading.Thread(target=lambda: answer.append(function(x)))
        thread.start()
        thread.join()
        return answer[0]

    return run


def imported(x):
    return importlib.import_module("llmcourse.layers.norm").LayerNorm(6)(x).detach()


def executed(x):
    space = {"x": x}
    exec("import llmcourse.layers.norm as n\ny = n.LayerNorm(6)(x).detach()", space)
    return space["y"]


def copied(x):
    from llmcourse.layers.norm import LayerNorm

    made, forward = LayerNorm(6), LayerNorm.forward
    return types.FunctionType(forward.__code__, forward.__globals__)(made, x).detach()


def caught(x):
    try:
        return layer(x)
    except BaseException:
        return x


def generated(x):
    return next(layer(y) for y in [x])


PACKAGE = {
    "as it is": layer,
    "a thread": in_a_thread(layer),
    "importlib": imported,
    "exec": executed,
    "copied code": copied,
    "caught": caught,
    "a generator": generated,
    "partial": functools.partial(layer),
    "map": lambda x: next(map(layer, [x])),
    "object": type("Layer", (), {"__call__": lambda self, x: layer(x)})(),
}


@pytest.mark.parametrize("way", PACKAGE)
def test_the_package_cannot_be_called_by_a_detour(way):
    text = failure(PACKAGE[way], X, expected=X)
    assert "calls llmcourse." in text


def without_overrides(x):
    with torch._C.DisableTorchFunction():
        return F.gelu(x)


def in_a_mode(x):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, kinds, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return F.gelu(x)


TORCH = {
    "function": F.gelu,
    "module": torch.nn.GELU(),
    "operator": torch.ops.aten.gelu,
    "overload": torch.ops.aten.gelu.default,
    "in place": lambda x: torch.ops.aten.gelu_(x.clone()),
    "inner": torch._C._nn.gelu,
    "in Python": lambda x: torch._refs.nn.functional.gelu(x),
    "a thread": in_a_thread(F.gelu),
    "no overrides": without_overrides,
    "a mode": in_a_mode,
    "getattr": lambda x: getattr(F, "ge" + "lu")(x),
    "vmap": torch.func.vmap(F.gelu),
    "method": lambda x: x.softmax(-1),
    "of the class": lambda x: torch.Tensor.softmax(x, -1),
    "private": lambda x: torch._softmax(x, -1, False),
    "softmax's module": torch.nn.Softmax(-1),
    "masked": lambda x: torch.masked.softmax(x, -1),
    "attention": lambda x: torch.distributions.Categorical(logits=x).probs,
    "norm": lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5)[0],
    "norm's module": lambda x: torch.nn.LayerNorm(6)(x).detach(),
}


@pytest.mark.parametrize("way", TORCH)
def test_forbidden_parts_of_torch_cannot_be_called_by_a_detour(way):
    assert "calls torch's " in failure(TORCH[way], X, expected=X, forbid=PARTS)


def test_names_that_are_not_torchs_are_free():
    def softmax(x):
        return 2 * x

    def free(x):
        [2, 1].sort()
        return softmax(x)

    checks.check(free, X, expected=scaled, forbid=("softmax", "sort"))


def test_nobody_switches_the_watch_off():
    def off(x):
        sys.setprofile(None)
        return layer(x)

    def another(x):
        with cProfile.Profile():
            return 2 * x

    assert "sets another profiler" in failure(off, X, expected=X)
    if sys.version_info < (3, 12):  # later ones profile by another way
        assert "sets another profiler" in failure(another, X, expected=scaled)
    assert sys.getprofile() is None
    assert threading.getprofile() is None


def test_a_mode_left_on_does_not_reach_the_judge():
    class Lies(TorchFunctionMode):
        def __torch_function__(self, func, kinds, args=(), kwargs=None):
            return func(*args, **(kwargs or {})) * 0

    def leaves(x):
        Lies().__enter__()
        return torch.zeros(2, 4, 6)

    assert "all zeros" in failure(leaves, X, expected=scaled)
    assert torch.overrides._len_torch_function_stack() == 0


def test_what_the_test_expects_is_taken_before_the_learner_runs():
    expected = {"y": 2 * X}

    def finds(x):
        expected["y"] = torch.zeros(2, 4, 6)
        return {"y": torch.zeros(2, 4, 6)}

    assert "wrong value" in failure(finds, X, expected=expected)


def test_a_buffer_used_twice_is_judged_as_it_was_returned():
    buffer = torch.zeros(2, 4, 6)

    def reuses(x):
        buffer.copy_(2 * x)
        return buffer

    checks.check(reuses, X, expected=scaled, axes="B T D", causal_in=0, grad=())
