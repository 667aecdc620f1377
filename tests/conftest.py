"""A small course folder for tests of releasing, grading and the lab; and a browser."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing import CHROMIUM

ROOT = Path(__file__).parents[1]
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cell(kind, name, source, *, solution=False, points=None, locked=None):
    """One cell of a notebook, with nbgrader's metadata unless it is plain text."""
    made = {"cell_type": kind, "id": name, "metadata": {}, "source": source}
    if kind == "code":
        grade = points is not None
        info = {"grade": grade, "grade_id": name, "locked": not solution if locked is None else
                locked, "schema_version": 3, "solution": solution, "task": False}  # fmt: skip
        info |= {"points": points} if grade else {}
        made |= {"execution_count": None, "outputs": []}
        made["metadata"] = {"nbgrader": info}
    return made


def function(name, factor, secret):
    """An answer cell and its graded cell: `name(x)` is `factor` times x."""
    answer = (
        f"def {name}(x: torch.Tensor) -> torch.Tensor:\n"
        f'    """{factor} times x, [T]."""\n'
        "    ### BEGIN SOLUTION\n"
        f"    {secret} = x * {factor}\n"
        f"    return {secret}.clone()\n"
        "    ### END SOLUTION"
    )
    test = (
        f"checks.check({name}, torch.tensor([1.0]), expected=torch.tensor([{factor}.0]))\n"
        "### BEGIN HIDDEN TESTS\n"
        "with checks.hidden():\n"
        f'    hidden_input_{name} = checks.rng("sample", "{name}").normal(5)\n'
        f"    checks.check({name}, hidden_input_{name}, expected=lambda x: {factor} * x)\n"
        "### END HIDDEN TESTS"
    )
    return [cell("code", name, answer, solution=True),
            cell("code", f"{name}-check", test, points=4)]  # fmt: skip


def notebook(cells):
    meta = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}


def save(path, cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(notebook(cells), indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")


ZOO = {
    "right_plain": (["double"], "return 2 * x", ""),
    "right_sum": (["triple"], "return x + x + x", ""),
    "wrong_four_times": (["triple"], "return 4 * x", "triple-check"),
    "wrong_short_only": (["double"], "return 2 * x if len(x) == 1 else x", "double-check"),
    "wrong_tells": (
        ["double"],
        "print(In)\n    raise ValueError(f'{x} {In}')\n\n"
        "from IPython.display import HTML, display\n"
        "display(HTML('<b>bold</b><script>stolen()</script>'))",
        "double-check",
    ),
}


def save_zoo(folder):
    folder.mkdir(parents=True)
    for name, (cells, body, fails) in ZOO.items():
        head = f'"""The answer {name}."""\n' + (f"# fails: {fails}\n" if fails else "")
        parts = [f"\n# cell: {c}\ndef {c}(x):\n    {body}\n" for c in cells]
        (folder / f"{name}.py").write_text(head + "".join(parts))


@pytest.fixture
def course(tmp_path):
    """A course folder: one source notebook (the linter passes it), its zoo, no release."""
    root = tmp_path / "course"
    cells = [
        cell("markdown", "title", "# A sample\n\nMultiply: $y = a x$, for $a > 0$ & $x < 1$."),
        cell("code", "imports", "import torch\n\nfrom llmcourse import checks"),
        *function("double", 2, "secret_of_double"),
        *function("triple", 3, "secret_of_triple"),
    ]
    save(root / "solutions" / "04_sample" / "sample.ipynb", cells)
    save_zoo(root / "tests" / "exercises" / "zoo" / "04_sample")
    for folder in ("exercises", "book", "llmcourse"):
        (root / folder).mkdir()
    shutil.copy(ROOT / "nbgrader_config.py", root)
    (root / "pyproject.toml").write_text("")
    return root


@pytest.fixture
def released(course):
    """The same folder with its exercise released as a test needs it: stub, no hidden tests."""
    from llmcourse.grading import zoo

    source = zoo.read_notebook(course / "solutions" / "04_sample" / "sample.ipynb")
    save(course / "exercises" / "04_sample" / "sample.ipynb", zoo.released(source)["cells"])
    return course


QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """One Chromium for a module; a longer life would leave its event loop to other modules."""
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium (Debian: apt install chromium): no page is looked at")
    from playwright.sync_api import sync_playwright

    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=[*QUIET, *(["--no-sandbox"] if root else [])]
        )
        yield chromium
        chromium.close()
