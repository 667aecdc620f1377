"""Known right and wrong answers get the grade they deserve, cell by cell.

An assignment is whatever solutions/ holds, so a new one needs no line here.
"""

from pathlib import Path

import pytest

from llmcourse.grading import zoo

ROOT = Path(__file__).parents[2]
SOURCES = {p.parent.name: p for p in sorted(ROOT.glob("solutions/*/*.ipynb"))}
ZOO = Path(__file__).parent / "zoo"
ENTRIES = [(a, path) for a in SOURCES for path in sorted((ZOO / a).glob("*.py"))]


def source(assignment):
    return zoo.read_notebook(SOURCES[assignment])


def graded(notebook):
    cells = [zoo.grade_info(c) for c in notebook["cells"]]
    return {info["grade_id"] for info in cells if info.get("grade") and not info["solution"]}


def messages(scores):
    return "\n".join(f"{cell}: {s.message}" for cell, s in scores.items() if s.message)


@pytest.mark.parametrize(
    ("assignment", "path"), ENTRIES, ids=[f"{a}-{p.stem}" for a, p in ENTRIES]
)
def test_exactly_the_named_cells_fail(assignment, path):
    notebook, entry = source(assignment), zoo.read_entry(path)
    assert entry.fails <= graded(notebook)
    scores = zoo.score(zoo.fill(notebook, entry.answers))
    assert zoo.failed(scores) == entry.fails, messages(scores)
    said = messages(scores)
    assert ": crashed: " not in said and "could not run" not in said, said


@pytest.mark.parametrize("assignment", SOURCES)
def test_the_solution_gets_full_marks(assignment):
    scores = zoo.score(source(assignment))
    assert not zoo.failed(scores), messages(scores)


@pytest.mark.parametrize("assignment", SOURCES)
def test_the_empty_release_gets_nothing(assignment):
    """Hidden tests stay in: the answers alone are empty."""
    notebook = source(assignment)
    empty = zoo.fill(notebook, zoo.answers(zoo.released(notebook)))
    assert zoo.failed(zoo.score(empty)) == graded(notebook)


@pytest.mark.parametrize("assignment", SOURCES)
def test_the_released_notebook_checks_itself(assignment):
    """What a learner runs, with the solution put in: every visible check passes."""
    notebook = source(assignment)
    filled = zoo.fill(zoo.released(notebook), zoo.answers(notebook))
    scores = zoo.score(filled)
    assert not zoo.failed(scores), messages(scores)


@pytest.mark.parametrize("assignment", SOURCES)
def test_the_zoo_is_large_enough(assignment):
    entries = zoo.entries(ZOO / assignment)
    assert sum(e.right for e in entries) >= 2
    assert sum(not e.right for e in entries) >= 10
    assert len({e.says for e in entries}) == len(entries)


@pytest.mark.parametrize("assignment", SOURCES)
def test_every_graded_cell_has_a_mutant_that_only_it_kills(assignment):
    killed_alone = {
        next(iter(e.fails)) for e in zoo.entries(ZOO / assignment) if len(e.fails) == 1
    }
    assert killed_alone == graded(source(assignment))


@pytest.mark.parametrize("order", [list(SOURCES), list(SOURCES)[::-1]], ids=["forth", "back"])
def test_no_assignment_disturbs_the_next(order):
    for assignment in order:
        scores = zoo.score(source(assignment))
        assert not zoo.failed(scores), messages(scores)


@pytest.mark.slow
@pytest.mark.parametrize("salt", ["1", "2", "3"])
@pytest.mark.parametrize("assignment", SOURCES)
def test_right_answers_are_right_under_any_salt(assignment, salt, monkeypatch):
    monkeypatch.setenv("LLMCOURSE_SALT", salt)
    for entry in [e for e in zoo.entries(ZOO / assignment) if e.right]:
        scores = zoo.score(zoo.fill(source(assignment), entry.answers))
        assert not zoo.failed(scores), messages(scores)
