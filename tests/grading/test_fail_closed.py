"""Whatever dies while a submission is graded, no point comes from it."""

import os
import runpy
import shutil
import signal
import time
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
from nbgrader.utils import determine_grade

from llmcourse.grading import examiner, execute
from llmcourse.grading.sandbox import Limits, Sandbox, SandboxError

SAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))
LIMITS = Limits(memory=900 * 2**20, cpu=8.0, wall=20.0, cell=3.0)
CHECKS = ["double-check", "triple-check"]
NOBODY = {"double-check": 0, "triple-check": 0}


@pytest.fixture(scope="module", autouse=True)
def salt():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMCOURSE_SALT", "sample")
        yield


@pytest.fixture(scope="module")
def sandbox():
    if shutil.which("bwrap") is None:
        pytest.skip("no bubblewrap (Debian: apt install bubblewrap): nothing is graded")
    with Sandbox() as warm:
        yield warm


def right():
    """The sample exercise, answered rightly."""
    cell, function = SAMPLE["cell"], SAMPLE["function"]
    cells = [
        cell("code", "imports", "import torch\n\nfrom llmcourse import checks"),
        *function("double", 2, "y"),
        *function("triple", 3, "y"),
    ]
    return nbformat.from_dict(SAMPLE["notebook"](cells))


def scores(nb):
    return {
        c.metadata.nbgrader.grade_id: determine_grade(c)[0]
        for c in nb.cells
        if c.metadata.nbgrader.get("grade")
    }


def runs(pid):
    """Whether a process is there, and not dead already."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def before_cell(monkeypatch, name, do):
    """Have the examiner call `do(link)` just before that check, its hidden tests too."""
    run = examiner._run

    def hooked(part, number, space, ours, link):
        if f"checks.check({name.removesuffix('-check')}, " in part.source and (
            "HIDDEN" in part.source
        ):
            do(link)
        return run(part, number, space, ours, link)

    monkeypatch.setattr(examiner, "_run", hooked)


def test_a_right_answer_earns_its_points(sandbox):
    nb = right()
    assert execute.execute(nb, sandbox, LIMITS) == ""
    assert scores(nb) == {"double-check": 4, "triple-check": 4}


@pytest.mark.parametrize("name", CHECKS)
def test_without_the_examiner(name, sandbox, monkeypatch):
    before_cell(monkeypatch, name, lambda link: os.kill(os.getpid(), signal.SIGKILL))
    nb = right()
    with pytest.raises(SandboxError, match="examiner ended early"):
        execute.execute(nb, sandbox, LIMITS)
    assert scores(nb) == NOBODY


@pytest.mark.parametrize("name", CHECKS)
def test_when_the_examiner_says_nothing(name, sandbox, monkeypatch):
    before_cell(monkeypatch, name, lambda link: os._exit(0))
    nb = right()
    with pytest.raises(SandboxError, match="examiner ended early"):
        execute.execute(nb, sandbox, LIMITS)
    assert scores(nb) == NOBODY


@pytest.mark.parametrize("name", CHECKS)
def test_when_the_examiner_stops(name, sandbox, monkeypatch):
    monkeypatch.setattr(examiner, "PATIENCE", -(LIMITS.wall + LIMITS.cell) + 2)
    before_cell(monkeypatch, name, lambda link: os.kill(os.getpid(), signal.SIGSTOP))
    nb = right()
    with pytest.raises(SandboxError, match="busy without end"):
        execute.execute(nb, sandbox, LIMITS)
    assert scores(nb) == NOBODY


@pytest.mark.parametrize("name", CHECKS)
def test_without_the_learners_process(name, sandbox, monkeypatch):
    before_cell(monkeypatch, name, lambda link: link.run("import os; os._exit(0)"))
    monkeypatch.setattr(examiner.Link, "run", leniently(examiner.Link.run))
    nb = right()
    assert "gone" in execute.execute(nb, sandbox, LIMITS)
    assert scores(nb) == {n: 4 if n < name else 0 for n in CHECKS}


@pytest.mark.parametrize("name", CHECKS)
def test_without_the_sandbox(name, monkeypatch):
    if shutil.which("bwrap") is None:
        pytest.skip("no bubblewrap (Debian: apt install bubblewrap): nothing is graded")
    with Sandbox() as own:
        before_cell(monkeypatch, name, lambda link: os.kill(own._bwrap.pid, signal.SIGKILL))
        nb = right()
        with pytest.raises(SandboxError):
            execute.execute(nb, own, LIMITS)
        assert scores(nb) == NOBODY
        assert own.broken or own._bwrap.wait(10)


@pytest.mark.parametrize("generation", ["maker", "submission"])
@pytest.mark.parametrize("name", CHECKS)
def test_when_somebody_kills_the_learners_process(name, generation, monkeypatch):
    """As a machine without memory does: no fault of the learner, and no zero."""
    if shutil.which("bwrap") is None:
        pytest.skip("no bubblewrap (Debian: apt install bubblewrap): nothing is graded")
    with Sandbox() as own:
        place = ["keeper", "maker", "submission"].index(generation)

        def kill(link):
            there = family(own._bwrap.pid)
            os.kill(there[place], signal.SIGKILL)
            until = time.monotonic() + 10
            while runs(there[-1]) and time.monotonic() < until:  # on a busy machine
                time.sleep(0.01)

        before_cell(monkeypatch, name, kill)
        nb = right()
        with pytest.raises(SandboxError, match="something killed the notebook's process"):
            execute.execute(nb, own, LIMITS)
        assert scores(nb) == NOBODY


def family(pid):
    """A child, its child, and so on."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(children[0]), *family(int(children[0]))] if children else []


def test_a_check_that_was_not_run_says_so(sandbox, monkeypatch):
    monkeypatch.setattr(execute, "examine", lambda *_: examiner.Result())
    nb = right()
    execute.execute(nb, sandbox, LIMITS)
    assert scores(nb) == NOBODY
    assert nb.cells[2].outputs[0].ename == execute.NOT_GRADED


def leniently(run):
    def tried(self, source):
        try:
            return run(self, source)
        except examiner.ProcessEnded:
            return []

    return tried
