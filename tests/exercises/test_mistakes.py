"""Every hint that a visible check names is read by a learner who makes that mistake.

`zoo/NN_name/hints.txt` names for each hint a wrong answer: a file of the zoo, or what to change
in the solution.

    # cell: gelu

    hint: this is GELU with erf; GPT-2 has the tanh form
    zoo: wrong_gelu_with_erf

    hint: u is cubed, not squared
    - x**3
    + x**2

A hint that several checks of a cell name needs an answer for each of them.
"""

import re
from pathlib import Path

import pytest

from llmcourse.checks import judge
from llmcourse.grading import zoo

ROOT = Path(__file__).parents[2]
ZOO = Path(__file__).parent / "zoo"
SOURCES = {p.parent.name: p for p in sorted(ROOT.glob("solutions/*/*.ipynb"))}
HINT = re.compile(r"^hint: (.+)\n((?:.+\n?)+)", re.M)
CHANGE = re.compile(r"((?:^- .*\n)+)((?:^\+.*\n?)+)", re.M)


@pytest.fixture
def judged(monkeypatch):
    """The checks made so far, the last one last."""
    made, answer = [], judge.answer
    monkeypatch.setattr(judge, "answer", lambda it: (made.append(it), answer(it)))
    return made


def wrong_answers(assignment, solution):
    """(cell, hint, answers) of everything in hints.txt."""
    text = (ZOO / assignment / "hints.txt").read_text(encoding="utf-8")
    _, *parts = zoo.SECTION.split(text)
    for cell, body in zip(parts[::2], parts[1::2], strict=True):
        for hint, how in HINT.findall(body):
            if how.startswith("zoo: "):
                path = ZOO / assignment / f"{how[5:].strip()}.py"
                yield cell, hint, zoo.read_entry(path).answers
            else:
                yield cell, hint, {cell: changed(solution[cell], how)}


def changed(source, how):
    """The source with its `-` lines, which stand there once, replaced by the `+` lines."""
    assert not CHANGE.sub("", how), how
    for old, new in CHANGE.findall(how):
        old, new = (re.sub(r"^[-+] ?", "", x, flags=re.M).rstrip("\n") for x in (old, new))
        assert source.count(old) == 1, f"must stand once in the solution: {old}"
        source = source.replace(old, new)
    return source


def message(notebook, cell):
    """What the check of a solution cell says to who runs the notebook up to it."""
    names = [zoo.grade_info(c).get("grade_id") for c in notebook["cells"]]
    end = names.index(f"{cell}-check") + 1
    return zoo.score({"cells": notebook["cells"][:end]})[names[end - 1]].message


def tables(judged):
    """(what is checked, a hint, the table that it stands in) for each hint of these checks."""
    return {(it.name, hint, tuple(it.mistakes)) for it in judged for hint in it.mistakes}


@pytest.mark.parametrize("assignment", SOURCES)
def test_every_hint_is_read_by_whom_it_is_for(assignment, judged):
    source = zoo.read_notebook(SOURCES[assignment])
    solution, read = zoo.answers(source), set()
    learners = zoo.fill(zoo.released(source), solution)
    assert not zoo.failed(zoo.score(learners))
    named = tables(judged)
    for cell, hint, answers in wrong_answers(assignment, solution):
        said = message(zoo.fill(learners, answers), cell)
        assert f"hint: {hint}" in said.splitlines(), f"{cell}: {hint}\nit says: {said}"
        read |= {row for row in tables(judged[-1:]) if row[1] == hint}
    unread = [f"{name}: {hint}" for name, hint, _ in sorted(named - read)]
    assert not unread, "no wrong answer of hints.txt reads:\n" + "\n".join(unread)
