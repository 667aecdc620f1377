"""Each rule for graded notebooks has a notebook that breaks it, and that it alone refuses."""

import copy
import json
from pathlib import Path

import pytest

from llmcourse.grading import lint, release, stock, zoo

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("solutions/*/*.ipynb"))

SOLUTION = '''
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
'''
TEST = """
checks.check(double, 2, expected=4)
### BEGIN HIDDEN TESTS
with checks.hidden():
    checks.check(double, 3, expected=6)
### END HIDDEN TESTS
"""


def cell(name, source, kind="code", **info):
    plain = {"grade_id": name, "schema_version": 3, "grade": False, "solution": False}
    plain |= {"locked": True, "task": False}
    metadata = {"nbgrader": plain | info}
    return {"id": name, "cell_type": kind, "metadata": metadata, "source": source.strip()}


def good():
    return {
        "cells": [
            {"id": "title", "cell_type": "markdown", "metadata": {}, "source": "# Title"},
            cell("imports", "from llmcourse import checks"),
            cell("double", SOLUTION, solution=True, locked=False),
            cell("double-check", TEST, grade=True, points=9),
        ]
    }


IMPORTS, ANSWER, GRADED = 1, 2, 3


def test_the_good_notebook_is_good():
    assert lint.lint(good()) == []


def edit(number, old, new):
    def change(notebook):
        source = notebook["cells"][number]["source"]
        assert old in source
        notebook["cells"][number]["source"] = source.replace(old, new)

    return change


def info(number, **fields):
    def change(notebook):
        notebook["cells"][number]["metadata"]["nbgrader"].update(fields)

    return change


def rename(number, name):
    def change(notebook):
        notebook["cells"][number]["id"] = name

    return change


def add(new):
    return lambda notebook: notebook["cells"].append(copy.deepcopy(new))


def unlisted(notebook):
    notebook["cells"][IMPORTS]["metadata"] = {}


HIDDEN = "### BEGIN HIDDEN TESTS"
ENDED = "### END HIDDEN TESTS"
CHECK = "checks.check(double, 2, expected=4)"
INSIDE = "    checks.check(double, 3, expected=6)"

FAULTS = {
    "unmatched": (edit(GRADED, ENDED, ""), "BEGIN HIDDEN TESTS is never ended"),
    "never begun": (edit(ANSWER, "### BEGIN SOLUTION", ""), "has no partner"),
    "misspelt": (edit(GRADED, ENDED, "### END HIDEN TESTS"), "nearly a marker"),
    "singular": (edit(GRADED, ENDED, "### END HIDDEN TEST"), "nearly a marker"),
    "other case": (edit(GRADED, HIDDEN, "### Begin Hidden Tests"), "nearly a marker"),
    "no blank": (edit(ANSWER, "### BEGIN SOLUTION", "###BEGIN SOLUTION"), "nearly a marker"),
    "fewer signs": (edit(ANSWER, "### END SOLUTION", "# END SOLUTION"), "nearly a marker"),
    "more words": (
        edit(ANSWER, "### END SOLUTION", "### END SOLUTION here"),
        "nearly a marker",
    ),
    "nested": (edit(GRADED, INSIDE, f"{INSIDE}\n{HIDDEN}"), "has no partner"),
    "in a fixture": (edit(IMPORTS, "from", f"{HIDDEN}\n{ENDED}\nfrom"), "is no grade cell"),
    "no id": (rename(0, ""), "cell 0: no id"),
    "odd id": (rename(0, "a b"), "odd characters"),
    "id twice": (rename(0, "imports"), "imports: id given twice"),
    "two names": (rename(GRADED, "test"), "grade_id is 'double-check', must be"),
    "unlocked test": (info(GRADED, locked=False), "double-check: must be locked"),
    "unlocked fixture": (info(IMPORTS, locked=False), "imports: must be locked"),
    "locked answer": (info(ANSWER, locked=True), "a solution cell cannot be locked"),
    "no metadata": (unlisted, "imports: a code cell that nbgrader knows nothing of"),
    "old schema": (info(GRADED, schema_version=2), "schema_version must be 3"),
    "graded answer": (info(ANSWER, grade=True, points=3), "stand in different cells"),
    "no points": (info(GRADED, points=0), "a graded cell without points"),
    "few points": (info(GRADED, points=7), "7 points in all, must be 8 to 12"),
    "many points": (info(GRADED, points=13), "13 points in all, must be 8 to 12"),
    "expression": (edit(GRADED, ENDED, f"{ENDED}\n0.5"), "must end in hidden tests"),
    "nothing hidden": (
        lambda notebook: notebook["cells"][GRADED].update(source=CHECK),
        "must end in hidden tests",
    ),
    "openly hidden": (
        edit(GRADED, "with checks.hidden():", "if True:"),
        "must be one `with checks.hidden():`",
    ),
    "half hidden": (edit(GRADED, ENDED, f"y = 1\n{ENDED}"), "must be one `with checks.hidden"),
    "hidden too early": (
        edit(GRADED, HIDDEN, f"with checks.hidden():\n    pass\n{HIDDEN}"),
        "checks.hidden() outside the hidden tests",
    ),
    "stderr": (
        edit(GRADED, CHECK, "import sys\nprint(1, file=sys.stderr)"),
        "uses stderr, which may write",
    ),
    "warning": (
        edit(IMPORTS, "from", "import warnings\nwarnings.warn('x')\nfrom"),
        "uses warn",
    ),
    "progress bar": (edit(GRADED, CHECK, "for _ in tqdm([1]):\n    pass"), "uses tqdm"),
    "no solution": (
        lambda notebook: notebook["cells"][ANSWER].update(
            source='def double(x):\n    """Twice x."""\n    return 2 * x'
        ),
        "double: no solution to take out",
    ),
    "signature inside": (
        lambda notebook: notebook["cells"][ANSWER].update(
            source="### BEGIN SOLUTION\ndef double(x):\n    return 2 * x\n### END SOLUTION"
        ),
        "the signature of double is part of the solution",
    ),
    "no docstring": (edit(ANSWER, '"""Twice x."""', "x = x"), "double has no docstring"),
    "broken stub": (
        edit(ANSWER, "    ### END SOLUTION", "    if x:\n    ### END SOLUTION\n        x = 1"),
        "does not parse once the solution is taken out",
    ),
    "unchecked": (
        add(cell("more", SOLUTION.replace("double", "triple"), solution=True, locked=False)),
        "triple: no graded cell looks at it",
    ),
    "raw call": (
        edit(GRADED, CHECK, "y = double(2)"),
        "called outside a function that a check",
    ),
    "assertion": (
        edit(GRADED, INSIDE, "    assert double(2) == 4"),
        "called outside a function",
    ),
    "attribute": (edit(GRADED, CHECK, "double.__name__"), "used other than by calling"),
    "rebound": (edit(GRADED, CHECK, "double = abs"), "assigned to, over the learner's"),
    "redefined": (
        edit(GRADED, CHECK, "def double(x):\n    return 4"),
        "defines double over the learner's",
    ),
    "passed on": (
        edit(GRADED, CHECK, "y = list(map(double, [1]))"),
        "used other than by calling",
    ),
    "wrapped call": (
        edit(GRADED, CHECK, "def twice(x):\n    return double(double(x))\n\n\ny = twice(2)"),
        "twice is called outside a function that a check calls",
    ),
    "compared": (
        edit(
            GRADED,
            CHECK,
            "def same(x):\n    y = double(x)\n    return y == 4\n\n\n"
            "checks.check(same, 2, expected=True)",
        ),
        "looks into something of the learner's",
    ),
    "type asked": (
        edit(
            GRADED,
            CHECK,
            "checks.check(lambda x: isinstance(double(x), int), 2, expected=True)",
        ),
        "looks into something of the learner's",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_each_fault_is_found(what):
    change, told = FAULTS[what]
    notebook = good()
    change(notebook)
    found = lint.lint(notebook)
    assert any(told in fault for fault in found), found


def test_every_rule_has_a_fault_here():
    """A rule that no notebook breaks might as well not be there."""
    broken = set()
    for change, _ in FAULTS.values():
        notebook = good()
        change(notebook)
        broken |= {rule for rule in lint.RULES if list(rule(notebook))}
    assert broken == set(lint.RULES)


def test_learners_things_may_be_called_with_data_in_a_function_of_the_test():
    notebook = good()
    wrapped = "def twice(x):\n    y = double(x)\n    return {'y': double(y)}\n\n\n"
    edit(GRADED, CHECK, f"{wrapped}checks.check(twice, 2, expected={{'y': 8}})")(notebook)
    assert lint.lint(notebook) == []


def test_prose_may_speak_of_solutions_and_tests():
    notebook = good()
    notebook["cells"][0]["source"] = "The solution begins here. Hidden tests follow.\n# Tests"
    assert lint.lint(notebook) == []


def place(tmp_path, folder="02_gpt2", name="gpt2.ipynb", *beside):
    target = tmp_path / folder
    target.mkdir()
    for file in (name, *beside):
        (target / file).write_text("")
    return lint.lint_place(target / name, [{"number": "02", "slug": "gpt2"}])


def test_an_assignment_lies_in_its_chapters_folder(tmp_path):
    assert place(tmp_path) == []


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (("03_gpt2", "gpt2.ipynb"), "03_gpt2: no chapter has this number and slug"),
        (("02_gpt2", "gpt3.ipynb"), "gpt3.ipynb: its folder must be NN_gpt3"),
        (("02_gpt2", "gpt2.ipynb", "gpt2.md"), "gpt2.md: lies beside the notebook"),
    ],
)
def test_a_misplaced_assignment_is_told(tmp_path, where, told):
    assert any(told in fault for fault in place(tmp_path, *where))


def test_checkpoints_and_a_data_folder_may_lie_beside(tmp_path):
    assert place(tmp_path, "02_gpt2", "gpt2.ipynb", ".hidden") == []
    (tmp_path / "02_gpt2" / "data").mkdir()
    path = tmp_path / "02_gpt2" / "gpt2.ipynb"
    assert lint.lint_place(path, [{"number": "02", "slug": "gpt2"}]) == []


def with_data(course, name, text="1,2\n", cell=None):
    folder = course / "solutions" / "04_sample" / "data"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    path = folder.parent / "sample.ipynb"
    if cell:
        book = json.loads(path.read_text())
        source = {c["id"]: c for c in book["cells"]}[cell]
        source["source"] = source["source"].replace(*NAMED[cell].values())
        path.write_text(json.dumps(book))
    return path


NAMED = {
    "title": {"old": "Multiply:", "new": "Multiply what is in `data/a.csv`:"},
    "double-check": {
        "old": "with checks.hidden():",
        "new": "with checks.hidden():\n    'a.csv'",
    },
    "double": {
        "old": "    secret_of_double = x",
        "new": "    'a.csv'\n    secret_of_double = x",
    },
}


def test_data_that_the_notebook_names_is_released_with_it(course):
    pytest.importorskip("nbgrader")
    assert lint.check(with_data(course, "a.csv", cell="title")) == []
    assert stock.DATA == lint.DATA
    files = release.make(course)
    assert {p.as_posix() for p in files} == {"04_sample/sample.ipynb", "04_sample/data/a.csv"}


@pytest.mark.parametrize("cell", [None, "double-check", "double"])
def test_data_that_no_learner_hears_of_is_refused(course, cell):
    found = lint.check(with_data(course, "a.csv", cell=cell))
    assert "data/a.csv: no cell that learners see names it, but it would be released" in found


@pytest.mark.parametrize("name", ["a.py", ".a.csv", "sample.ipynb", "a.md"])
def test_only_data_lies_in_data(course, name):
    found = lint.check(with_data(course, name))
    assert f"data/{name}: only plain data files may lie in data/" in found


def test_a_solution_in_a_data_file_stops_the_release(course):
    pytest.importorskip("nbgrader")
    text = "    secret_of_double = x * 2\n    return secret_of_double.clone()\n"
    with_data(course, "a.csv", text, cell="title")
    with pytest.raises(release.ReleaseError, match="solution in 04_sample, cell double"):
        release.make(course)


INSIDE = {
    "a, b = double(x), 0\n    return b == 0": False,
    "a, b = double(x), 0\n    return a == 0": True,
    "a, (b, c) = 0, (double(x), 1)\n    return c == 1": False,
    "a, (b, c) = 0, (double(x), 1)\n    return b == 1": True,
    "a, b = double(x)\n    return b == 1": True,
    "a, *b = 1, double(x)\n    return b == 1": True,
    "d = {}\n    n = 1\n    d[f'{n}'] = double(x)\n    return n == 1": False,
    "d = {}\n    n = 1\n    d[n] = double(x)\n    return d == 1": True,
    "d = {}\n    d[1].y = double(x)\n    return d[1] == 1": True,
    "rows = []\n    rows.append(double(x))\n    return rows[0] == 1": True,
    "rows = []\n    rows.append(1)\n    double(x)\n    return rows[0] == 1": False,
    "for y in double(x):\n        if y:\n            return 1": True,
    "for y in [1, 2]:\n        if y:\n            return double(x)": False,
    "for n, y in zip([1, 2], double(x)):\n        if n == 1:\n            return y": False,
    "for n, y in zip([1, 2], double(x)):\n        if y == 1:\n            return n": True,
    "for n, y in enumerate(double(x)):\n        if n == 1:\n            return y": False,
    "for n, y in enumerate(double(x)):\n        if y == 1:\n            return n": True,
    "return [y for y in double(x) if y == 1]": True,
    "return [double(y) for y in [1, 2] if y == 1]": False,
    "y: int = double(x)\n    return y == 1": True,
    "y = 0\n    y += double(x)\n    return y == 1": True,
    "return (y := double(x)) if y else 0": True,
    "z = y = double(x)\n    w = z\n    return w == 1": True,
    "w = 0\n    while True:\n        assert w == 1\n        w = double(x)": True,
    "with double(x) as y:\n        return y == 1": True,
}


@pytest.mark.parametrize("body", INSIDE)
def test_a_tests_function_may_judge_its_own_things_and_none_of_the_learners(body):
    notebook = good()
    wrapped = f"def used(x):\n    {body}\n\n\nchecks.check(used, 2, expected=4)"
    edit(GRADED, CHECK, wrapped)(notebook)
    assert any("looks into" in fault for fault in lint.lint(notebook)) == INSIDE[body]


@pytest.mark.parametrize("path", SOURCES, ids=[p.stem for p in SOURCES])
def test_every_assignment_passes(path):
    assert lint.check(path) == []


def test_the_command_prints_every_fault_and_fails(tmp_path, capsys):
    path = tmp_path / "solutions" / "02_gpt2" / "gpt2.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text('{"cells": [], "nbformat": 4}')
    assert lint.main([str(path)]) == 1
    assert "0 points in all" in capsys.readouterr().err
    assert lint.main([]) == 0


def test_our_quick_release_is_nbgraders():
    """The zoo's tests take stubs from `zoo.released`; learners get them from nbgrader."""
    preprocessors = pytest.importorskip("nbgrader.preprocessors")
    nbformat = pytest.importorskip("nbformat")
    for path in SOURCES:
        released = nbformat.read(path, as_version=4)
        for step in (preprocessors.ClearSolutions(), preprocessors.ClearHiddenTests()):
            released, _ = step.preprocess(released, {})
        quick = zoo.released(zoo.read_notebook(path))
        theirs = [c.source.rstrip("\n") for c in released.cells]
        assert [c["source"] for c in quick["cells"]] == theirs
