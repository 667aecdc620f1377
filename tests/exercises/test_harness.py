"""The harness that scores the zoo judges as nbgrader does, and refuses what it cannot read."""

import pytest
import torch

from llmcourse.grading import zoo


def cell(source, **info):
    nbgrader = {"nbgrader": {"grade": False, "solution": False} | info} if info else {}
    return {"cell_type": "code", "metadata": nbgrader, "source": source}


def graded(name, source, points=1):
    return cell(source, grade_id=name, grade=True, points=points)


def test_points_go_to_cells_that_neither_raise_nor_complain():
    notebook = {
        "cells": [
            cell("x = 2"),
            graded("right", "assert x == 2", points=3),
            graded("wrong", "assert x == 3, 'x is two'", points=2),
            graded("loud", "import sys\nprint('careful', file=sys.stderr)"),
            graded("warns", "import warnings\nwarnings.warn('careful')"),
            graded("prints", "print(x)"),
            graded("leaves", "raise SystemExit"),
            graded("unreadable", "x ="),
        ]
    }
    scores = zoo.score(notebook)
    assert {n: (s.points, s.max_points) for n, s in scores.items()} == {
        "right": (3, 3),
        "wrong": (0, 2),
        "loud": (0, 1),
        "warns": (0, 1),
        "prints": (1, 1),
        "leaves": (0, 1),
        "unreadable": (0, 1),
    }
    assert scores["wrong"].message == "x is two"
    assert zoo.failed(scores) == {"wrong", "loud", "warns", "leaves", "unreadable"}


def test_an_interrupt_ends_the_run():
    with pytest.raises(KeyboardInterrupt):
        zoo.score({"cells": [cell("raise KeyboardInterrupt")]})


def test_what_a_notebook_changes_in_torch_ends_with_it():
    random = torch.get_rng_state()
    changes = (
        "import torch\ntorch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)"
    )
    zoo.score({"cells": [cell(f"{changes}\ntorch.manual_seed(1)"), cell("print(1)")]})
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), random)
    assert zoo.score({"cells": [graded("fresh", "torch")]})["fresh"].points == 0


def test_answers_replace_whole_cells_and_nothing_else():
    solution = cell("def f():\n    return 1", grade_id="f", solution=True)
    other = cell("g = 2", grade_id="g", solution=True)
    notebook = {"cells": [solution, other, graded("f-check", "assert f() == 3")]}
    entry = zoo.Entry("right_three", "Three.", {"f": "def f():\n    return 3"}, frozenset())
    filled = zoo.fill(notebook, entry.answers)
    assert [c["source"] for c in filled["cells"]] == [
        "def f():\n    return 3",
        "g = 2",
        "assert f() == 3",
    ]
    assert notebook["cells"][0]["source"] == "def f():\n    return 1"
    released = zoo.fill(notebook, {"f": "raise NotImplementedError()", "g": ""})
    assert zoo.submission(released, notebook, entry) == filled
    with pytest.raises(KeyError, match="no such solution cells: h"):
        zoo.fill(notebook, {"h": ""})


def test_a_zoo_file_is_read_section_by_section(tmp_path):
    path = tmp_path / "wrong_sign.py"
    path.write_text(
        '"""Minus."""\n# fails: f-check, g-check\n\n# cell: f\nx = 1\n\n# cell: g\ny = 2\n'
    )
    entry = zoo.read_entry(path)
    assert (entry.name, entry.says, entry.right) == ("wrong_sign", "Minus.", False)
    assert entry.answers == {"f": "x = 1", "g": "y = 2"}
    assert entry.fails == {"f-check", "g-check"}
    assert zoo.entries(tmp_path) == [entry]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("right_a", "# cell: f\nx = 1"),  # nothing said in words
        ("right_a", '"""Said."""\nx = 1'),  # no answers
        ("right_a", '"""Said."""\n# fails: f-check\n# cell: f\nx = 1'),  # right, and fails
        ("wrong_a", '"""Said."""\n# cell: f\nx = 1'),  # wrong, and fails nothing
    ],
)
def test_a_zoo_file_out_of_form_is_refused(tmp_path, name, text):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    with pytest.raises(ValueError, match="needs a docstring"):
        zoo.read_entry(path)


def test_a_stub_has_the_indent_of_its_solution():
    body = "        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION"
    source = f"class A:\n    def f(self):\n{body}"
    hidden = "y = 1\n### BEGIN HIDDEN TESTS\nassert f() == 1\n### END HIDDEN TESTS"
    shown = zoo.released({"cells": [cell(source), cell(hidden)]})["cells"]
    stub = "        # YOUR CODE HERE\n        raise NotImplementedError()"
    assert shown[0]["source"] == f"class A:\n    def f(self):\n{stub}"
    assert shown[1]["source"] == "y = 1"
