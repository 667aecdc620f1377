"""A small class for tests of grading: made once, copied for every test; and a warm grader.

A test file takes the fixtures from here by runpy: they are its own, whatever else is tested.
"""

import datetime
import json
import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

NAME, SLUG = "04_sample", "sample"
ROOT = Path(__file__).parents[2]
SAMPLE = runpy.run_path(str(ROOT / "tests" / "conftest.py"))
DOUBLE = "def double(x):\n    return 2 * x"
TRIPLE = "def triple(x):\n    return 3 * x"
WRONG = "def double(x):\n    print('mine')\n    return -2 * x"
# Who hands in what: answers by cell, or bytes; and what it earns: double, triple, or None.
WORK = {
    "ada": ({"double": DOUBLE, "triple": TRIPLE}, (4, 4)),
    "ben": ({"double": DOUBLE}, (4, 0)),
    "cy": ({}, (0, 0)),
    "dot": ({"double": WRONG, "triple": TRIPLE}, (0, 4)),
    "eve": ({"double": DOUBLE, "triple": TRIPLE, "double-check": None}, (0, 4)),
    "fay": (b'{"cells": [', None),
    "gus": ({"double": "import os\nos._exit(0)", "triple": TRIPLE}, (0, 0)),
    "hal": (None, None),  # a folder without a notebook
}
GRADED = {name: earns for name, (_, earns) in WORK.items() if earns}


@dataclass
class Classroom:
    """A course folder with a release, and what may be done in it."""

    root: Path

    @property
    def api(self):
        from llmcourse.grading import stock

        return stock.api(self.root)

    def notebook(self, answers):
        """The released notebook with these answers; None takes a cell away."""
        path = self.root / "exercises" / NAME / f"{SLUG}.ipynb"
        nb = json.loads(path.read_text())
        gone = {name for name, text in answers.items() if text is None}
        nb["cells"] = [c for c in nb["cells"] if c["id"] not in gone]
        for cell in nb["cells"]:
            cell["source"] = answers.get(cell["id"], cell["source"])
        return json.dumps(nb).encode()

    def folder(self, learner):
        return self.root / "submitted" / learner / NAME

    def hand_in(self, learner, work, stamp=None):
        """Put it where nbgrader collects: answers by cell, bytes, or a folder alone."""
        folder = self.folder(learner)
        folder.mkdir(parents=True, exist_ok=True)
        if work is not None:
            raw = work if isinstance(work, bytes) else self.notebook(work)
            (folder / f"{SLUG}.ipynb").write_bytes(raw)
        if stamp is not None:
            (folder / "timestamp.txt").write_text(stamp)

    def whole_class(self):
        for learner, (work, _) in WORK.items():
            self.hand_in(learner, work, "2026-11-01 10:00:00 UTC")
        return self

    def run(self, pool=None, **how):
        from llmcourse.grading import autograde

        return autograde.run(self.root, NAME, pool=pool, progress=False, **how)

    def setting(self, line):
        with (self.root / "nbgrader_config.py").open("a") as file:
            file.write(line + "\n")

    def due(self, when):
        with self.api.gradebook as book:
            date = datetime.datetime.fromisoformat(when)
            book.update_or_create_assignment(NAME, duedate=date)

    def scores(self):
        """Learner -> points of double and triple, of those with grades."""
        with self.api.gradebook as book:
            return {
                s.student_id: tuple(
                    g.score for n in s.notebooks for g in sorted(n.grades, key=lambda g: g.name)
                )
                for s in book.assignment_submissions(NAME)
            }

    def table(self):
        """All that the gradebook knows of grades, without the ids it made up."""
        with self.api.gradebook as book:
            return [
                (s.student_id, str(s.timestamp), n.name, n.late_submission_penalty, sorted(
                    (g.name, g.auto_score, g.manual_score, g.score, g.extra_credit,
                     g.needs_manual_grade) for g in n.grades
                ), sorted((c.name, c.auto_comment, c.manual_comment) for c in n.comments))
                for s in sorted(book.assignment_submissions(NAME), key=lambda s: s.student_id)
                for n in s.notebooks
            ]  # fmt: skip

    def rows(self):
        """Learner -> row of the report."""
        from llmcourse.grading import report

        return {row.student: row for row in report.rows(self.root, NAME)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A course folder whose sample exercise nbgrader has released."""
    pytest.importorskip("nbgrader")
    from llmcourse.grading import stock

    root = tmp_path_factory.mktemp("class") / "course"
    SAMPLE["save"](root / "solutions" / NAME / f"{SLUG}.ipynb", [
        SAMPLE["cell"]("markdown", "title", "# A sample"),
        SAMPLE["cell"]("code", "imports", "import torch\n\nfrom llmcourse import checks"),
        *SAMPLE["function"]("double", 2, "secret_of_double"),
        *SAMPLE["function"]("triple", 3, "secret_of_triple"),
    ])  # fmt: skip
    (root / "pyproject.toml").write_text("")
    shutil.copy(ROOT / "nbgrader_config.py", root)
    (root / ".course_secret").write_text("a sample\n")
    stock.must(stock.api(root).generate_assignment(NAME), "generating")
    return root


@pytest.fixture
def classroom(prepared, tmp_path):
    """A copy of it for one test."""
    shutil.copytree(prepared, tmp_path / "course")
    return Classroom(tmp_path / "course")


@pytest.fixture(scope="module")
def pool():
    """One grader for all tests of a file: its sandbox takes seconds to start."""
    if not shutil.which("bwrap"):
        pytest.skip("no bubblewrap (Debian: apt install bubblewrap): nothing is graded")
    from llmcourse.grading.grader import LocalPool

    with LocalPool(1) as graders:
        yield graders


class Recorded:
    """A pool that knows the outcomes already; `on` is called with the number of each."""

    def __init__(self, outcomes):
        self.outcomes, self.on = outcomes, lambda number: None

    def __call__(self, jobs):
        for number, job in enumerate(jobs):
            self.on(number)
            yield self.outcomes[job.key]


@pytest.fixture(scope="module")
def known(prepared, pool, tmp_path_factory):
    """What becomes of the whole class: its outcomes, and the table of an undisturbed run."""
    root = tmp_path_factory.mktemp("undisturbed") / "course"
    shutil.copytree(prepared, root)
    room, outcomes = Classroom(root).whole_class(), {}

    def graders(jobs):
        for outcome in pool(jobs):
            outcomes[outcome.key] = outcome
            yield outcome

    counts = room.run(graders)
    return outcomes, room.table(), counts


@pytest.fixture
def recorded(known):
    return Recorded(dict(known[0]))
