"""The zoos through the split path: the same cells fail as in the learner's own kernel.

All right answers, all wrong ones that are about what split execution must carry along (what is
changed, kept, called, differentiated, or costs), and every tenth of the others.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
import nbformat
import torch
from nbgrader.utils import compute_checksum, determine_grade

from llmcourse import checks
from llmcourse.grading import execute, grader, zoo
from llmcourse.grading.sandbox import Limits, Sandbox
from llmcourse.grading.standins import Link

ROOT = Path(__file__).parents[2]
SOURCES = {p.parent.name: p for p in sorted(ROOT.glob("solutions/*/*.ipynb"))}
ZOO = ROOT / "tests" / "exercises" / "zoo"
DELICATE = re.compile(
    r"cost|flops_are|bytes_of|slow|in_place|detach|cut_off|gradient\b|as_a_number|autograd|thread|"
    r"calls|librar|package|exclude|general|caller|last_call|keeps_its|object|powers|"
    r"large_numbers|no gradient"
)
needs_bwrap = pytest.mark.skipif(
    not shutil.which("bwrap"), reason="no bubblewrap (Debian: apt install bubblewrap)"
)


def chosen(assignment):
    """The files of one zoo that are run here."""
    paths = sorted((ZOO / assignment).glob("*.py"))
    delicate = [p for p in paths if p.stem.startswith("right_") or DELICATE.search(about(p))]
    rest = [p for p in paths if p not in delicate]
    return sorted(delicate + rest[::10])


def about(path):
    return f"{path.stem} {path.read_text(encoding='utf-8').splitlines()[0]}"


def template(source):
    """What a gradebook knows of an assignment."""
    return tuple(
        {
            "grade_id": info["grade_id"], "cell_type": c["cell_type"], "source": c["source"],
            "locked": info["locked"], "grade": info["grade"], "solution": info["solution"],
            "task": False, "points": info.get("points"),
            "checksum": compute_checksum(nbformat.from_dict(c)),
        }
        for c in source["cells"] if (info := zoo.grade_info(c))
    )  # fmt: skip


def failed(text):
    """The graded cells that score less than all, as nbgrader reads them, with what they say."""
    found = {}
    for cell in nbformat.reads(text, as_version=4).cells:
        info = cell.metadata.get("nbgrader", {})
        if info.get("grade"):
            got, most = determine_grade(cell)
            if got != most:
                found[info["grade_id"]] = [o.get("evalue", o.get("text")) for o in cell.outputs]
    return found


@pytest.fixture(autouse=True)
def _salt(monkeypatch):
    monkeypatch.setenv("LLMCOURSE_SALT", os.environ.get("LLMCOURSE_SALT", ""))


@needs_bwrap
@pytest.mark.slow
@pytest.mark.parametrize("assignment", SOURCES)
def test_exactly_the_named_cells_fail(assignment):
    source = zoo.read_notebook(SOURCES[assignment])
    release, known = zoo.released(source), template(source)
    wrong = {}
    for path in chosen(assignment):
        entry = zoo.read_entry(path)
        raw = json.dumps(zoo.submission(release, source, entry)).encode()
        outcome = grader.grade(grader.Job(path.stem, raw, known, None, {}, ""))
        assert outcome.notebook, outcome.why
        found = failed(outcome.notebook)
        if found.keys() != entry.fails or outcome.notes:
            wrong[entry.name] = (found, sorted(entry.fails), outcome.notes)
    execute.stop()
    assert not wrong


def test_enough_of_each_zoo_is_run():
    for assignment in SOURCES:
        paths = chosen(assignment)
        assert len(paths) >= len(list((ZOO / assignment).glob("*.py"))) / 5
        right = {p for p in (ZOO / assignment).glob("right_*.py")}
        assert right <= set(paths)


# --- Gradients.

FUNCTIONS = """
import torch

def plain(a, b):
    return torch.tanh(a @ b).cumsum(0) / (1 + b.exp().sum())

def unused(a, b):
    return a.sin()

def constant(a, b):
    return torch.ones(3, dtype=torch.float64)

def cut_off(a, b):
    return a * b.detach(), (a * b).detach(), b.square()

def not_only_floats(a, b):
    return a.argmax(), a * b.sum(), 3, "text", None, (a > 0), b.to(torch.float32).mean()

def nested(a, b):
    return {"both": [a + b, {"product": a * b}], "left": (a.exp(),), "number": 2}

def named(a, *, b, power=1):
    return (a * b) ** power

def in_lists(pair, more=None):
    return sum(x * (i + 1) for i, x in enumerate(pair)) * more["scale"]

def views(a, b):
    return a, a.T, a[1:], b.reshape(-1)[::2]

def twice(a, b):
    return plain(a, b) + plain(b, a) * a.mean()

def complex_inside(a, b):
    return torch.fft.ifft(torch.fft.fft(a) * torch.fft.fft(b)).real

def empty(a, b):
    return a[:0], b.sum()

class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, a, b):
        return self.factor * a * b

scale = Scale(3.0)
"""
CALLS = {
    **{name: lambda f, a, b: f(a, b) for name in (
        "plain", "unused", "constant", "cut_off", "not_only_floats", "nested", "views", "twice",
        "complex_inside", "empty", "scale")},
    "named": lambda f, a, b: f(a, b=b, power=3),
    "in_lists": lambda f, a, b: f([a, b, a * b], more={"scale": b.mean()}),
}  # fmt: skip


@pytest.fixture(scope="module")
def links():
    """Two ways to the same functions: in this process, and in the sandbox."""
    here = {}
    exec(FUNCTIONS, here)
    limits = Limits(cell=30)
    with Sandbox() as sandbox:
        words = frozenset(re.findall(r"\w+", FUNCTIONS))
        link = Link(sandbox.open(limits), limits.cell, sandbox.interrupt, words)
        assert link.run(FUNCTIONS) == []
        yield here, link.names(list(CALLS))
        link.channel.close()
        sandbox.close()


def leaves(x):
    if isinstance(x, dict):
        return [leaf for key in sorted(x) for leaf in leaves(x[key])]
    if isinstance(x, list | tuple):
        return [leaf for item in x for leaf in leaves(item)]
    return [x]


def gradients(name, function, seed, needs):
    """All that a call gives, and the gradients of a random sum of it."""
    random = torch.Generator().manual_seed(seed)
    a, b = (
        torch.randn(4, 4, generator=random, dtype=torch.float64).requires_grad_(n)
        for n in needs
    )
    out = leaves(CALLS[name](function, a, b))
    loss = torch.zeros((), dtype=torch.float64)
    for x in out:
        if isinstance(x, torch.Tensor) and x.requires_grad:
            weights = torch.randn(x.shape, generator=random, dtype=torch.float64)
            loss = loss + (weights * x).sum()
    if loss.requires_grad:
        loss.backward()
    return out, (a.grad, b.grad)


@needs_bwrap
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_the_function_itself(links, name, needs):
    here, there = links
    for seed in range(3):
        expected, wanted = gradients(name, here[name], seed, needs)
        got, grads = gradients(name, there[name], seed, needs)
        assert len(got) == len(expected)
        for x, y in zip(expected, got, strict=True):
            if isinstance(x, torch.Tensor):
                assert (x.dtype, x.shape, x.requires_grad) == (
                    y.dtype,
                    y.shape,
                    y.requires_grad,
                )
                torch.testing.assert_close(y, x, rtol=1e-12, atol=1e-12)
            else:
                assert x == y and type(x) is type(y)
        for x, y in zip(wanted, grads, strict=True):
            x, y = (torch.zeros(4, 4, dtype=torch.float64) if g is None else g for g in (x, y))
            assert (x - y).abs().max() <= 1e-6 * max(1.0, x.abs().max())


@needs_bwrap
def test_a_wrong_gradient_would_be_seen(links):
    here, there = links
    _, wanted = gradients("plain", here["plain"], 0, (True, True))
    _, other = gradients("plain", there["twice"], 0, (True, True))
    assert (wanted[0] - other[0]).abs().max() > 1e-3


@needs_bwrap
def test_a_check_of_gradients_passes_and_fails_through_the_split(links):
    here, there = links
    a, b = (torch.randn(4, 4, dtype=torch.float64) for _ in range(2))
    checks.check(there["plain"], a, b, expected=here["plain"], grad=True)

    def depends_on_both(a, b):
        return a.sin() + b - b.detach()

    with pytest.raises(checks.CheckFailed, match="gradient"):
        checks.check(there["unused"], a, b, expected=depends_on_both, grad=True)
