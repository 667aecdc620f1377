"""Every kind of check catches its wrong answer, says why, and lets right ones by."""

import linecache
import logging
import math
import os
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from llmcourse import checks
from llmcourse.layers.norm import LayerNorm

X = checks.rng("test", "x").normal(2, 5, 8)
W = checks.rng("test", "w").normal(8, 8)


def oracle(x, w):
    """Running sums of x @ w: causal, with a batch, positions and channels."""
    return (x @ w).cumsum(1)


def failure(function, *args, **options):
    with pytest.raises(checks.CheckFailed) as caught:
        checks.check(function, *args, **options)
    return str(caught.value)


def of_sums(function, **options):
    """What a learner reads who hands in this function for `oracle`."""
    options = {"expected": oracle, "axes": "B T D", "name": "sums"} | options
    return failure(function, X, W, **options)


def loops(x, w):
    total, rows = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        total = total + torch.einsum("bd,de->be", x[:, t], w)
        rows.append(total)
    return torch.stack(rows, dim=1)


def backwards(x, w):
    return torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=x.dtype)).flip(1) @ x.flip(1) @ w


@pytest.mark.parametrize("right", [oracle, loops, backwards])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_orders_of_summation_are_right(right, dtype):
    checks.check(right, X.to(dtype), W.to(dtype), expected=oracle, axes="B T D", grad=True)


def test_a_visible_check_says_ok_in_one_line(capsys):
    assert checks.check(oracle, X, W, expected=oracle, case="random") is None
    assert capsys.readouterr() == ("ok: oracle, random\n", "")


def test_a_hidden_check_says_nothing(capsys):
    with checks.hidden():
        checks.check(oracle, X, W, expected=oracle, case="random")
    assert capsys.readouterr() == ("", "")


STEPS = {
    "type": (lambda x, w: None, "sums: returned None, needs a tensor\nhint: is the `return`"),
    "shape": (lambda x, w: oracle(x, w)[:, 1:], "sums: wrong size of axis T of [B, T, D]"),
    "axes": (
        lambda x, w: oracle(x, w)[0],
        "sums: wrong number of axes: 2, needs 3 of [B, T, D]",
    ),
    "dtype": (lambda x, w: oracle(x, w).double(), "sums: wrong dtype: float64, needs float32"),
    "finite": (
        lambda x, w: oracle(x, w).index_fill(1, torch.tensor([3]), math.nan),
        "sums: 16 of 80 entries NaN, first at B=0, T=3, D=0\nhint: 0/0",
    ),
    "value": (
        lambda x, w: oracle(x, w) + torch.eye(5, 8),
        "of the largest entry, first at B=0, T=0, D=0",
    ),
    "inputs": (lambda x, w: oracle(x.mul_(1), w.add_(1)) * 0 + oracle(x, w - 1), "in place"),
    "gradient": (
        lambda x, w: oracle(x, w.detach()),
        "sums: wrong gradient with respect to w: there is none\nhint: w is not used",
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_each_step_has_a_wrong_answer_that_it_catches(step):
    wrong, message = STEPS[step]
    assert message in of_sums(wrong, grad=True, tolerance=1e-5)


def test_the_first_failing_step_speaks():
    """Wrong in shape, dtype, value and gradient: the shape is named."""
    assert "wrong size" in of_sums(lambda x, w: (x @ w).detach()[:, 1:].double(), grad=True)


def test_visible_checks_show_expected_and_got_and_hidden_ones_never():
    def wrong(x, w):
        return oracle(x, w) + 3

    text = of_sums(wrong)
    assert "expected at [0, 0, 0:6]" in text
    assert "got" in text
    with checks.hidden(), pytest.raises(checks.CheckFailed) as caught:
        checks.check(wrong, X, W, expected=oracle, axes="B T D", name="sums", case="odd")
    off = "off by about 0.1 of the largest entry"
    assert 0.05 < 3 / float(oracle(X, W).abs().max()) < 0.3
    assert str(caught.value).splitlines() == [
        f"hidden check of sums (odd): wrong value: {off}, first at B=0, T=0, D=0",
        "hint: every entry is off by the same amount",
    ]
    assert "expected" in caught.value.details


def test_the_place_is_the_earliest_position_not_the_first_sequence():
    def wrong(x, w):
        y = oracle(x, w)
        y[0, 4, 0] += 9
        y[1, 2, 5] += 9
        return y

    assert "first at B=1, T=2, D=5" in of_sums(wrong)
    assert "first at [0, 4, 0]" in of_sums(wrong, axes="")


def test_a_scalar_has_no_place():
    text = failure(lambda x: x.mean() * math.nan, X, expected=torch.mean)
    assert text.splitlines()[0] == "<lambda>: 1 of 1 entries NaN"


HINTS = {
    "transposed": (lambda x, w: oracle(x, w).transpose(1, 2), "transposed?"),
    "another shape": (lambda x, w: oracle(x, w).flatten(1), "right numbers in another shape"),
    "factor": (lambda x, w: oracle(x, w) / 8, "every entry is 0.125 times what it should be"),
    "sign": (lambda x, w: -oracle(x, w), "the sign is turned round"),
    "zeros": (lambda x, w: torch.zeros_like(x), "all zeros"),
    "offset": (lambda x, w: oracle(x, w) + 1, "every entry is off by the same amount"),
    "input": (lambda x, w: x * 1, "this is x as it came in"),
    "late": (lambda x, w: F.pad(oracle(x, w), (0, 0, 1, 0))[:, :-1], "belongs to t - 1"),
    "early": (lambda x, w: F.pad(oracle(x, w), (0, 0, 0, 1))[:, 1:], "belongs to t + 1"),
    "half": (lambda x, w: oracle(x, w).bfloat16().float(), "rounded to bfloat16"),
    "nearly": (lambda x, w: oracle(x, w) * (1 + 1e-4 * x), "nearly right"),
    "first sequence": (
        lambda x, w: oracle(x[:1], w).expand_as(x),
        "the first sequence of the batch is right, the others are not",
    ),
    "last position": (
        lambda x, w: torch.cat([oracle(x, w)[:, :-1], x[:, -1:]], 1),
        "only the last position is wrong",
    ),
    "first position": (
        lambda x, w: torch.cat([x[:, :1], oracle(x, w)[:, 1:]], 1),
        "only the first position is wrong",
    ),
    "numpy": (lambda x, w: oracle(x, w).numpy(), "returned a numpy array, needs a tensor"),
    "list": (lambda x, w: list(oracle(x, w)), "torch.stack or torch.cat"),
}


@pytest.mark.parametrize("what", HINTS)
def test_usual_causes_are_named(what):
    wrong, hint = HINTS[what]
    assert hint in of_sums(wrong)


def test_a_float64_answer_through_float32_is_told():
    text = failure(
        lambda x: x.float().exp().double(), X.double(), expected=torch.exp, axes="B T D"
    )
    assert "hint: rounded to float32" in text


def test_a_float64_answer_with_a_part_in_float32_is_told():
    text = failure(lambda x: x + x.float().exp(), X.double(), expected=lambda x: x + x.exp())
    assert "hint: part of it is computed in float32" in text


def test_causality_is_tried_out():
    hint = "hint: position 0 depends on token 1: not causal"
    assert hint in of_sums(lambda x, w: (x @ w).sum(1, True) - oracle(x, w), causal_in=0)
    ids = torch.tensor([[3, 1, 2]])
    text = failure(
        lambda ids: F.one_hot(ids.roll(-1, 1), 5).float(),
        ids,
        expected=lambda ids: F.one_hot(ids, 5).double(),
        axes="B T V",
        causal_in=0,
    )
    assert "position 0 depends on token 1" in text


def test_named_mistakes_come_before_the_others():
    mistakes = {"no running sum": lambda x, w: x @ w, "half of it": oracle(X, W) / 2}
    assert "hint: half of it" in of_sums(lambda x, w: oracle(x, w) / 2, mistakes=mistakes)
    assert "hint: no running sum" in of_sums(lambda x, w: x @ w, mistakes=mistakes)
    other = of_sums(lambda x, w: oracle(x, w) / 4, mistakes=mistakes)
    assert "hint: every entry is 0.25 times" in other


def test_a_gradient_off_by_a_factor_is_told():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g / 2

    text = of_sums(lambda x, w: oracle(Halved.apply(x), w), grad=[0])
    assert "wrong gradient with respect to x: off by 0.5" in text
    assert "hint: every entry is 0.5 times" in text


def test_a_cut_path_and_a_nan_gradient_are_told():
    assert "cut off from its inputs" in of_sums(lambda x, w: oracle(x, w).detach(), grad=True)
    text = of_sums(lambda x, w: oracle(x, w) + 0 * torch.sqrt(x - x), grad=True)
    assert "wrong gradient with respect to x: not finite" in text


def test_gradients_reach_into_dicts_by_name():
    def right(p):
        return p["a"] * p["b"]

    text = failure(
        lambda p: p["a"] * p["b"].detach(), {"a": X, "b": X}, expected=right, grad=True
    )
    assert "wrong gradient with respect to p['b']: there is none" in text


VALUES = {
    "int": (lambda: 124, 130, "wrong value\nexpected  130\ngot       124"),
    "float for int": (lambda: 3.0, 3, "returned a float, needs an int\nhint: `//` divides"),
    "bool for int": (lambda: True, 1, "returned a bool, needs an int"),
    "tensor for int": (
        lambda: torch.tensor(3),
        3,
        "returned a tensor, needs an int\nhint: `.item",
    ),
    "tensor for list": (lambda: torch.tensor([3]), [3], "hint: `.tolist()`"),
    "numpy number": (lambda: np.int64(3), 3, "returned an int64, needs an int\nhint: stay in"),
    "str": (lambda: "abx", "abcd", "the first 2 characters are right, the next is not"),
    "short": (lambda: [1, 2], [1, 2, 3], "too few entries, but those up to the shorter's end"),
    "long": (lambda: [1, 9, 3], [1, 2], "too many entries, and the first difference is at [1]"),
    "entry": (
        lambda: {"a": [1, 2]},
        {"a": [1, 3]},
        "entry ['a']: wrong value: 1 of 2 entries, first at [1]",
    ),
    "keys": (lambda: {"a": 1}, {"b": 1}, "wrong keys\nexpected  ['b']\ngot       ['a']"),
    "ids": (
        lambda: torch.tensor([1, 2, 4]),
        torch.tensor([1, 2, 3]),
        "wrong value: 1 of 3 entries, first at [2]",
    ),
    "float": (lambda: 0.5, 0.25, "wrong value: off by 100%"),
    "NaN": (lambda: math.nan, 0.25, "wrong value: it is nan"),
    "count": (
        lambda: 1234,
        2345,
        "wrong value: off by 47%\nexpected  2345\ngot       1234  (1111 too few)",
    ),
    "huge": (
        lambda: 10**5000,
        2345,
        "wrong value: off by far\nexpected  2345\ngot       <int>",
    ),
    "huge for float": (lambda: 10**400, 0.5, "wrong value: off by far"),
    "list of ids": (
        lambda: [5, 257, 9],
        [5, 64, 9],
        "1 of 3 entries, first at [1]\nexpected  [5, 64, 9]\ngot       [5, 257, 9]",
    ),
    "pairs of ids": (
        lambda: {"merges": [(1, 2), (4, 3)]},
        {"merges": [[1, 2], [3, 4]]},
        "['merges']: wrong value: 1 of 2 entries, first at [1]\nexpected  [[1, 2], [3, 4]]",
    ),
    "words": (lambda: ["a", "b"], ["a", "c"], "wrong value: 1 of 2 entries, first at [1]"),
    "long list": (
        lambda: [*range(50), 0, *range(51, 100)],
        [*range(100)],
        "first at [50]\nexpected at [46:62]  [46, 47, 48, 49, 50,",
    ),
    "long, and too long": (
        lambda: [*range(101)],
        [*range(100)],
        "those up to the shorter's end are right\nexpected at [85:101]  [85, 86,",
    ),
    "text cut": (lambda: "ab", "abc", "its 2 characters are right, but more must follow"),
    "text too long": (lambda: "abcd", "abc", "the first 3 characters are right, and all"),
    "long text": (
        lambda: "a" * 99 + "x" * 99,
        "a" * 99 + "b" * 99,
        f"expected at [84:144]  '{'a' * 15}{'b' * 45}'",
    ),
    "a later length": (
        lambda: [torch.tensor([1, 2]), [1]],
        [torch.tensor([1, 2]), [1, 2]],
        "entry [1]: too few entries",
    ),
}


@pytest.mark.parametrize("what", VALUES)
def test_plain_values_are_held_to_type_and_value(what):
    wrong, expected, message = VALUES[what]
    assert message in failure(wrong, expected=expected)


def test_a_tuple_is_as_good_as_a_list_and_an_int_as_a_float():
    checks.check(lambda: ([1, 2], 3), expected=[(1, 2), 3.0])
    checks.check(lambda: [None, "a", True], expected=[None, "a", True])


def test_infinities_belong_where_they_are_expected():
    masked = torch.tensor([0.0, -math.inf])
    checks.check(lambda: masked.clone(), expected=masked)
    assert "wrong value" in failure(lambda: torch.zeros(2), expected=masked)
    assert "1 of 2 entries infinite" in failure(lambda: masked.clone(), expected=torch.zeros(2))


def test_claims_hold_instead_of_one_expected_answer(capsys):
    claim = {"the text has two letters": lambda text: len(text) == 2}
    checks.check(lambda: "ab", kind=str, holds=claim)
    text = failure(lambda: "abc", kind=str, holds=claim)
    assert "it does not hold that the text has two letters" in text
    assert "returned an int, needs a str" in failure(lambda: 3, kind=str, holds=claim)


def test_a_false_claim_may_be_explained_where_it_is_visible():
    claim = {
        "all are even": (
            lambda ids: all(i % 2 == 0 for i in ids),
            lambda ids: f"odd: {[i for i in ids if i % 2]}",
        )
    }
    checks.check(lambda: [2, 4], kind=list, holds=claim)
    text = failure(lambda: [2, 3], kind=list, holds=claim, name="evens")
    assert text == "evens: it does not hold that all are even\ngot  [2, 3]\nodd: [3]"
    with checks.hidden():
        assert "odd: " not in failure(lambda: [2, 3], kind=list, holds=claim)


def test_a_claim_that_cannot_be_tried_is_told_like_a_false_one():
    text = failure(lambda: "ab", kind=str, holds={"it is short": lambda text: text.missing})
    assert "it cannot be tried whether it is short\nAttributeError: 'str' object" in text


def test_a_mistake_that_cannot_be_made_here_does_not_hide_what_is_wrong():
    mistakes = {"divided": lambda x, w: 1 / 0, "no running sum": lambda x, w: x @ w}
    assert "hint: no running sum" in of_sums(lambda x, w: x @ w, mistakes=mistakes)
    assert "sums: wrong value" in of_sums(lambda x, w: x @ w + x, mistakes=mistakes)


def test_known_mistakes_are_found_whatever_the_order_of_keys():
    mistakes = {"one too few": {"a": 1, "b": 2}}
    text = failure(lambda: {"b": 2, "a": 1}, expected={"a": 2, "b": 3}, mistakes=mistakes)
    assert "hint: one too few" in text


def test_known_mistakes_are_found_where_a_length_inside_is_wrong():
    mistakes = {"the last is missing": {"a": [1]}}
    assert "the last is missing" in failure(
        lambda: {"a": [1]}, expected={"a": [1, 2]}, mistakes=mistakes
    )


@pytest.mark.parametrize("scale", [1 + 2e-5, 1.0004, 1.002, 0.99951, 0.9994, -1.0002, 2.0])
def test_a_factor_of_one_is_never_told(scale):
    text = of_sums(lambda x, w: oracle(x, w) * scale)
    assert "is 1 times" not in text and "is -1 times" not in text
    assert ("times what" in text) == (abs(abs(scale) - 1) > 1e-3)


TYPES = {
    "range": (lambda: range(3), [0, 1, 2], "returned a range, needs a list\nhint: `list(...)`"),
    "keys": (lambda: {1: 2}.keys(), [1], "hint: `list(...)`"),
    "generator": (
        lambda: (i for i in [1]),
        1,
        "returned a generator, needs an int\nhint: `yie",
    ),
    "function": (lambda: max, 1, "hint: this is a function, not what it returns: call it"),
    "bytes": (lambda: b"a", "a", 'returned a bytes, needs a str\nhint: `.decode("utf-8")`'),
    "number": (lambda: 1.5, torch.tensor(1.5), "hint: `torch.tensor(...)` makes a tensor"),
    "max": (lambda: X.max(1), X.amax(1), "returned a tuple, needs a tensor\nhint: `.values`"),
    "sparse": (lambda: X.to_sparse(), X, "returned a sparse or nested tensor, needs a tensor"),
    "meta": (lambda: X.to("meta"), X, "returned a tensor on device meta, needs a tensor"),
}


@pytest.mark.parametrize("what", TYPES)
def test_other_types_come_with_a_way_out(what):
    wrong, expected, message = TYPES[what]
    assert message in failure(wrong, expected=expected)


def test_expected_errors_must_come_and_be_of_their_class():
    def refuses(x):
        raise IndexError("too long")

    checks.check(refuses, 1, expected=LookupError)
    assert "must raise ValueError here, but returned\ngot  2" in failure(
        lambda x: 2, 1, expected=ValueError
    )
    assert "must raise ValueError here, but raised IndexError" in failure(
        refuses, 1, expected=ValueError
    )


def test_an_unwritten_answer_is_told_even_where_an_error_is_expected():
    def stub(x):
        raise NotImplementedError

    message = "stub: is not written yet: it still raises NotImplementedError"
    assert failure(stub, X, expected=X) == message
    assert failure(stub, X, expected=RuntimeError) == message  # NotImplementedError is one


CELL = """
import torch
import torch.nn.functional as F

def helper(x):
    raise NotImplementedError()

def caller(x):
    return helper(x) + 1

def broken(x):
    y = x.no_such_method()
    return y

def normed(x):
    return F.layer_norm(x, [3])

def of_ints(x):
    return torch.softmax(torch.tensor([1, 2]), 0)

class Cache:
    def __init__(self):
        self.rows = []

    def append(self, row):
        self.rows.append(row)

    def keys(self):
        raise NotImplementedError()

    def count(self):
        return len(self.rows)
"""


def cell(source=CELL, name="<a learner's cell>"):
    """What a learner's cell defines: its code stands in another place than the test."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), space)
    return SimpleNamespace(**space)


THEIRS = cell()
broken = THEIRS.broken


def test_the_function_that_waits_is_named():
    assert failure(THEIRS.caller, X, expected=X).startswith(
        "caller: calls helper, which is not written"
    )


def test_a_method_that_waits_is_named_with_its_class():
    text = failure(lambda: THEIRS.Cache().keys(), expected=1, name="KVCache")
    assert text == "KVCache: Cache.keys is not written yet: it still raises NotImplementedError"


def test_what_torch_has_not_implemented_is_no_unwritten_answer():
    text = failure(THEIRS.of_ints, X, expected=X)
    assert text.startswith("of_ints: raised NotImplementedError\n")
    assert text.endswith("in your line  return torch.softmax(torch.tensor([1, 2]), 0)")


def test_what_a_learners_class_lacks_is_told_and_the_tests_line_is_not_called_theirs():
    def used(x):
        cache = THEIRS.Cache()
        cache.append(x)
        return cache.length

    text = failure(used, X, expected=1, name="Cache")
    assert text.splitlines() == [
        "Cache: raised AttributeError",
        "your class Cache has no 'length'; it has append, count, keys, rows",
        "in the line  return cache.length",
    ]
    text = failure(lambda: THEIRS.Cache().append(1, 2), expected=None, name="Cache")
    assert "takes 2 positional arguments but 3 were given\nin the line" in text


def test_a_method_that_should_be_a_property_is_told():
    text = failure(lambda: {"n": THEIRS.Cache().count}, expected={"n": 0}, name="Cache")
    assert text.splitlines()[:2] == [
        "Cache: entry ['n']: returned a method, needs an int",
        "hint: is `@property` missing above `def count`?",
    ]


def test_an_exception_shows_class_text_and_the_learners_own_line():
    lines = failure(broken, X, expected=X).splitlines()
    assert lines[0] == "broken: raised AttributeError"
    assert "no_such_method" in lines[1]
    assert lines[2] == "in your line  y = x.no_such_method()"


def test_an_exception_inside_torch_shows_the_line_that_called_it():
    text = failure(THEIRS.normed, X, expected=X)
    assert text.endswith("in your line  return F.layer_norm(x, [3])")


def test_a_hidden_exception_shows_its_class_alone():
    with checks.hidden(), pytest.raises(checks.CheckFailed) as caught:
        checks.check(broken, X, expected=X)
    assert str(caught.value) == "hidden check of broken: raised AttributeError"


def test_exit_and_endless_recursion_end_nothing():
    def endless(x):
        return endless(x)

    assert "raised SystemExit" in failure(lambda x: sys.exit(0), X, expected=X)
    assert "hint: it calls itself without end" in failure(endless, X, expected=X)


def test_an_interrupt_goes_through():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checks.check(interrupted, X, expected=X)


def test_changing_an_input_that_needs_a_gradient_is_explained():
    def wrong(x, w):
        y = x @ w
        z = y.exp()
        y += 1
        z *= 2
        return z

    text = failure(wrong, X, W, expected=lambda x, w: 2 * (x @ w).exp(), grad=True)
    assert "hint: it changes a tensor in place that the gradient still needs" in text


def noisy(x, w):
    print("mine")
    print("also mine", file=sys.stderr)
    warnings.warn("careful", stacklevel=1)
    logging.getLogger("learner").error("not an error")
    os.write(2, b"from compiled code\n")
    return oracle(x, w)


def test_nothing_reaches_standard_error(capfd, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", lambda text, *_: print(text, file=sys.stderr))
    logging.getLogger("learner").addHandler(logging.StreamHandler(sys.stderr))
    checks.check(noisy, X, W, expected=oracle, grad=True)
    with checks.hidden():
        checks.check(noisy, X, W, expected=oracle)
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("mine\nalso mine\ncareful\n")
    assert out.endswith("ok: noisy\n")
    assert out.count("also mine") == 1  # neither of the second call nor of the hidden check
    logging.getLogger("learner").handlers.clear()


def test_output_shown_back_is_short(capsys):
    checks.check(lambda: print("a" * 10**6), expected=None)
    assert len(capsys.readouterr().out) < 2100


def test_arguments_are_copies():
    kept = []

    def keeps(x, w):
        kept.append(x)
        return oracle(x, w)

    before = X.clone()
    checks.check(keeps, X, W, expected=oracle)
    kept[0].zero_()
    assert torch.equal(X, before)


def test_lists_and_dicts_must_stay_as_they_were():
    assert "changed its argument ids in place" in failure(
        lambda ids: ids.pop(), [1, 2], expected=2
    )
    assert "changed its argument p in place" in failure(
        lambda p: p.setdefault("b", 2), {"a": 1}, expected=2
    )


def normed(x):
    return F.layer_norm(x, x.shape[-1:])


FORBIDDEN = {
    "function": normed,
    "module": lambda x: torch.nn.LayerNorm(8, elementwise_affine=False)(x),
    "operator": lambda x: torch.ops.aten.layer_norm(x, [8]),
    "overload": lambda x: torch.ops.aten.layer_norm.default(x, [8]),
}


@pytest.mark.parametrize("way", FORBIDDEN)
def test_forbidden_torch_functions_are_refused(way):
    text = failure(FORBIDDEN[way], X, expected=normed, forbid=("layer_norm",), name="mine")
    assert text == "mine: calls torch's layer_norm, which is not allowed here: do without it"
    checks.check(FORBIDDEN[way], X, expected=normed)  # not forbidden here, nor to the oracle


def test_methods_of_tensors_are_refused_too():
    text = failure(
        lambda x: x.softmax(-1), X, expected=lambda x: x.softmax(-1), forbid=["softmax"]
    )
    assert "calls torch's softmax" in text


def of_the_package(x):
    with torch.no_grad():
        return LayerNorm(8)(x)


def test_the_package_is_refused_unless_allowed():
    text = failure(of_the_package, X, expected=normed)
    assert text.startswith("of_the_package: calls llmcourse.layers.norm, which is not allowed")
    allowed = ["llmcourse.layers", "llmcourse.ops.common"]
    checks.check(of_the_package, X, expected=normed, allow=allowed)
    assert sys.getprofile() is None


def test_refusal_holds_even_if_the_learner_catches_everything():
    def sly(x):
        try:
            return of_the_package(x)
        except Exception:
            return x

    assert "calls llmcourse.layers.norm" in failure(sly, X, expected=normed)


class Memory:
    """A learner's class."""

    def __init__(self):
        self.items = []

    def append(self, x):
        self.items.append(x)
        return torch.stack(self.items)

    @property
    def length(self):
        return len(self.items)


class Forgetful(Memory):
    def append(self, x):
        self.items = [*self.items, x][-2:]
        return torch.stack(self.items)


@pytest.mark.parametrize(
    ("kind", "message"), [(Memory, ""), (Forgetful, "entry ['all']: wrong")]
)
def test_learners_classes_are_checked_by_what_a_function_does_with_them(kind, message):
    def appended(x):
        memory = kind()
        for row in x:
            everything = memory.append(row)
        return {"all": everything, "length": memory.length}

    def expected(x):
        return {"all": x, "length": 5}

    if not message:
        checks.check(appended, X[0], expected=expected, grad=True)
    else:
        assert message in failure(appended, X[0], expected=expected)


class StandIn:
    """As the grader will call: no name, no signature, data in and out."""

    def __init__(self, function):
        self._function = function

    __signature__ = None

    def __call__(self, *args):
        return self._function(*args)


def test_a_stand_in_that_tells_nothing_of_itself_is_checked_all_the_same():
    checks.check(StandIn(oracle), X, W, expected=oracle, grad=True)
    text = failure(
        StandIn(lambda x, w: oracle(x, w.detach())), X, W, expected=oracle, grad=True
    )
    assert "gradient with respect to number 2: there is none" in text


def test_a_test_that_breaks_inside_hidden_shows_none_of_its_lines():
    with pytest.raises(checks.CheckFailed) as caught, checks.hidden():
        _ = 1 / 0
    assert str(caught.value) == "a hidden check could not run: ZeroDivisionError"
    assert "1 / 0" in caught.value.details
    assert caught.value._render_traceback_() == [str(caught.value)]


def test_hiding_ends_with_the_block(capsys):
    with checks.hidden():
        pass
    checks.check(lambda: 1, expected=1)
    assert capsys.readouterr().out == "ok: <lambda>\n"


def test_ipython_shows_the_message_alone():
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell.run_cell("from llmcourse import checks\nimport io, contextlib")
    out = shell.run_cell(
        "text = io.StringIO()\nwith contextlib.redirect_stdout(text):\n"
        "    get_ipython().run_cell('checks.check(lambda: 1, expected=2, name=\"one\")')"
    )
    assert out.success
    shown = shell.user_ns["text"].getvalue()
    assert shown.strip() == "one: wrong value\nexpected  2\ngot       1"


def test_random_inputs_depend_on_words_and_salt_alone(monkeypatch):
    monkeypatch.delenv("LLMCOURSE_SALT", raising=False)
    first = checks.rng("02_gpt2", 1).normal(4)
    torch.manual_seed(3)
    assert torch.equal(first, checks.rng("02_gpt2", 1).normal(4))
    assert not torch.equal(first, checks.rng("02_gpt2", 2).normal(4))
    assert not torch.equal(first, checks.rng("02_gpt", "21").normal(4))
    with checks.hidden():
        assert torch.equal(first, checks.rng("02_gpt2", 1).normal(4))
    monkeypatch.setenv("LLMCOURSE_SALT", "secret")
    assert torch.equal(first, checks.rng("02_gpt2", 1).normal(4))
    with checks.hidden():
        assert not torch.equal(first, checks.rng("02_gpt2", 1).normal(4))


def test_a_hidden_check_says_no_digits_of_what_an_answer_is_off_by():
    """An answer can be off by an input, or by whatever its author likes."""
    x, places = X.double(), torch.arange(9000)

    def said(secret):
        for wrong, want in [
            (x * secret, x), (x + secret * torch.arange(8) / 1e3, x),
            (1e3 + 1e-4 * secret, 1e3), (10**6 + secret, 10**6),
            (places * (places > secret), places), ([secret] * 2, [1, 2]),
        ]:  # fmt: skip
            with pytest.raises(checks.CheckFailed) as told, checks.hidden():
                checks.check(lambda x: wrong, X, expected=want, name="f")  # noqa: B023
            yield str(told.value)

    assert list(said(1234)) == list(said(2345))


def test_random_inputs_keep_their_promises():
    r = checks.rng("ranges")
    u, i = r.uniform(1000, low=2.0, high=3.0), r.integers(4, 7, 1000)
    assert 2 <= u.min() < 2.1 < 2.9 < u.max() <= 3
    assert sorted(set(i.tolist())) == [4, 5, 6]
    assert i.dtype == torch.int64
    n = r.normal(10000, std=3.0, dtype=torch.float64)
    assert n.dtype == torch.float64
    assert abs(n.std() - 3) < 0.15  # seven standard errors


def test_gradients_need_an_oracle():
    with pytest.raises(ValueError, match="grad needs a function"):
        checks.check(lambda x: x, X, expected=X, grad=True)
