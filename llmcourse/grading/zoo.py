"""The zoo: known right and wrong answers to every assignment, and a quick way to score them.

A zoo file `tests/exercises/zoo/NN_name/{right,wrong}_what.py` holds only answers:

    \"\"\"Divides by D - 1: the sample variance.\"\"\"
    # fails: layer_norm-check, block-check

    # cell: layer_norm
    def layer_norm(x, weight, bias, eps): ...

The first line says in words what is done or mistaken; `fails` names exactly the graded cells
that must score 0 (wrong files only); each section is the whole of one solution cell. Cells that
are not mentioned keep the instructor's solution.
"""

import ast
import contextlib
import copy
import io
import json
import linecache
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

SECTION = re.compile(r"^# cell: (\S+)[ \t]*\n", re.M)
FAILS = re.compile(r"^# fails: (.+)$", re.M)
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
HIDDEN = re.compile(
    r"^[ \t]*### BEGIN HIDDEN TESTS.*?^[ \t]*### END HIDDEN TESTS *\n?", re.M | re.S
)
SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION.*?^[ \t]*### END SOLUTION *$", re.M | re.S)

Notebook = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One zoo file: its name, what it does in words, its answers, the cells that must fail."""

    name: str
    says: str
    answers: dict[str, str]
    fails: frozenset[str]

    @property
    def right(self) -> bool:
        return self.name.startswith("right_")


@dataclass(frozen=True)
class Score:
    """What became of one graded cell: points got, points there are, and the message if any."""

    points: float
    max_points: float
    message: str = ""


def read_notebook(path: Path) -> Notebook:
    """The notebook's JSON, cell sources joined to strings."""
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def grade_info(cell: dict[str, Any]) -> dict[str, Any]:
    """nbgrader's metadata of a cell; empty where it has none."""
    info: dict[str, Any] = cell["metadata"].get("nbgrader", {})
    return info


def read_entry(path: Path) -> Entry:
    """Read a zoo file; ValueError where it does not keep the format."""
    text = path.read_text(encoding="utf-8")
    head, *parts = SECTION.split(text)
    says = ast.get_docstring(ast.parse(head))
    found = FAILS.search(head)
    entry = Entry(
        path.stem,
        says or "",
        {cell: body.strip("\n") for cell, body in zip(parts[::2], parts[1::2], strict=True)},
        frozenset(re.split(r"[,\s]+", found[1].strip()) if found else ()),
    )
    if not says or not entry.answers or entry.right == bool(found):
        raise ValueError(
            f"{path}: needs a docstring, `# cell:` sections, and `# fails:` if it is wrong"
        )
    return entry


def entries(folder: Path) -> list[Entry]:
    """Every zoo file of an assignment, by name."""
    return [read_entry(path) for path in sorted(folder.glob("*.py"))]


def answers(notebook: Notebook) -> dict[str, str]:
    """The notebook's own solution cells, {grade_id: source}."""
    cells = [c for c in notebook["cells"] if grade_info(c).get("solution")]
    return {grade_info(c)["grade_id"]: c["source"] for c in cells}


def fill(notebook: Notebook, new: dict[str, str]) -> Notebook:
    """A copy of the notebook with these answers; KeyError where a cell does not exist."""
    missing = set(new) - set(answers(notebook))
    if missing:
        raise KeyError(f"no such solution cells: {', '.join(sorted(missing))}")
    filled = copy.deepcopy(notebook)
    for cell in filled["cells"]:
        info = grade_info(cell)
        if info.get("solution") and info["grade_id"] in new:
            cell["source"] = new[info["grade_id"]]
    return filled


def submission(release: Notebook, source: Notebook, entry: Entry) -> Notebook:
    """The released notebook as the learner of this zoo file hands it in."""
    return fill(release, answers(source) | entry.answers)


def released(notebook: Notebook) -> Notebook:
    """The notebook as learners get it: stubs for solutions, no hidden tests.

    For quick tests; the release itself is made by nbgrader, and a test compares the two.
    """
    notebook = copy.deepcopy(notebook)
    for cell in notebook["cells"]:
        shown = HIDDEN.sub("", cell["source"])
        shown = SOLUTION.sub(lambda m: textwrap.indent(STUB, m[1]), shown)
        cell["source"] = shown.rstrip("\n")
    return notebook


def score(notebook: Notebook) -> dict[str, Score]:
    """Run the notebook in this process, in one fresh namespace, and score its graded cells.

    As nbgrader judges: a cell that raises or writes to standard error gets nothing. A failing
    cell stops nothing. Fast, and for answers that we wrote: they could see the tests.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    scores = {}
    with _as_it_was(), _warnings_on_stderr():
        for number, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] != "code":
                continue
            message = _run(cell["source"], f"<cell {number}>", space)
            info = grade_info(cell)
            if info.get("grade"):
                points = float(info["points"])
                scores[info["grade_id"]] = Score(0.0 if message else points, points, message)
    return scores


def failed(scores: dict[str, Score]) -> frozenset[str]:
    """The graded cells that scored nothing."""
    return frozenset(cell for cell, result in scores.items() if result.points == 0)


def _run(source: str, name: str, space: dict[str, Any]) -> str:
    """What went wrong in the cell, in words; empty if nothing did."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    printed, complained = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            exec(compile(source, name, "exec"), space)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        judged = isinstance(error, AssertionError | NameError)  # a name: what was not written
        return str(error) if judged else f"crashed: {error!r}"
    return f"standard error: {complained.getvalue()}" if complained.getvalue() else ""


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """One notebook's changes to torch's global state must not reach the next."""
    dtype, gradients, random = (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_rng_state(),
    )
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        torch.set_rng_state(random)


@contextlib.contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Warnings go where they would go in a kernel, also if a test runner collects them."""

    def tell(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    with warnings.catch_warnings():
        warnings.showwarning = tell
        yield
