"""Submissions that want points, tests, secrets or the machine: each fails as it should.

A file of hostile/ is one submission. Its first line says in words what it tries; then

    # fails: double-check, triple-check     the checks that it fails; all others it earns
    # says: wrong value                     in the message of the first that fails, as a pattern
    # ended: memory                         why its process was ended, as a pattern
    # why: not JSON                         or: why it cannot be graded at all
    # stock: earns double-check             what it wins from nbgrader's own execution: points,
    # stock: shows                          or a look at a hidden test's input
    # twice                                 it is run twice, and is as wrong the second time

and either sections `# cell: NAME`, each the whole of an answer, or a function `notebook(nb)`
that makes of the notebook with right answers what is handed in: another one, or bytes.
Most that want something are written so that their answer is right only if they get it.
"""

import ast
import copy
import json
import re
import runpy
import shutil
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")
from nbgrader.utils import compute_checksum, determine_grade

from llmcourse import checks
from llmcourse.grading import examiner, execute, grader, zoo
from llmcourse.grading.feedback import HideHidden
from llmcourse.grading.sandbox import Limits

FOLDER = Path(__file__).parent / "hostile"
SAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))
ROOM = runpy.run_path(str(Path(__file__).parent / "classroom.py"))
prepared, classroom = ROOM["prepared"], ROOM["classroom"]
LIMITS = Limits(memory=900 * 2**20, cpu=8.0, wall=20.0, cell=3.0)
POINTS = {"double-check": 4.0, "triple-check": 4.0}


@dataclass(frozen=True)
class Attack:
    """One file of hostile/."""

    path: Path
    says: dict[str, str]

    @property
    def fails(self) -> set[str]:
        return set(re.findall(r"[\w-]+", self.says.get("fails", "")))


def read(path: Path) -> Attack:
    text = path.read_text(encoding="utf-8")
    head = re.split(r"^(?:# cell:|def notebook)", text, flags=re.M)[0]
    assert ast.get_docstring(ast.parse(head)), f"{path.name} does not say what it tries"
    says = dict(re.findall(r"^# (fails|says|ended|why|stock|twice):? ?(.*)$", head, re.M))
    assert ("fails" in says) != ("why" in says), f"{path.name}: how does it end?"
    return Attack(path, says)


ATTACKS = [read(path) for path in sorted(FOLDER.glob("*.py"))]


def source():
    """The sample exercise with its solutions and hidden tests."""
    cell, function = SAMPLE["cell"], SAMPLE["function"]
    cells = [
        cell("markdown", "title", "# A sample"),
        cell("code", "imports", "import torch\n\nfrom llmcourse import checks"),
        *function("double", 2, "secret_of_double"),
        *function("triple", 3, "secret_of_triple"),
    ]
    return SAMPLE["notebook"](cells)


def template() -> tuple[dict, ...]:
    """What a gradebook knows of the sample exercise."""
    stubs = {c["id"]: c["source"] for c in zoo.released(source())["cells"]}
    return tuple(
        {
            "grade_id": c["id"], "cell_type": c["cell_type"],
            "source": stubs[c["id"]] if info["solution"] else c["source"],
            "locked": info["locked"], "grade": info["grade"], "solution": info["solution"],
            "task": False, "points": info.get("points"),
            "checksum": compute_checksum(nbformat.from_dict(c)),
        }
        for c in source()["cells"] if (info := zoo.grade_info(c))
    )  # fmt: skip


def handed_in(attack: Attack | None) -> bytes:
    """The notebook of an attack, or a right one."""
    nb = zoo.released(source())
    right = {n: f"def {n}(x):\n    return {f} * x" for n, f in (("double", 2), ("triple", 3))}
    if attack is None:
        return json.dumps(zoo.fill(nb, right)).encode()
    answers = zoo.SECTION.split(attack.path.read_text(encoding="utf-8"))[1:]
    new = right | dict(zip(answers[::2], answers[1::2], strict=True))
    nb = zoo.fill(nb, new)
    if not answers:
        nb = runpy.run_path(str(attack.path))["notebook"](nb)
    return nb if isinstance(nb, bytes) else json.dumps(nb).encode()


@pytest.fixture(scope="module")
def grade():
    """Grades bytes as a grader does; one sandbox for all."""
    if shutil.which("bwrap") is None:
        pytest.skip("no bubblewrap (Debian: apt install bubblewrap): no hostile code is run")

    def run(raw: bytes):
        return grader.grade(grader.Job("it", raw, template(), None, {}, "sample", LIMITS))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMCOURSE_SALT", "sample")
        patch.setattr(examiner, "PATIENCE", 3)
        yield run


@pytest.fixture(scope="module")
def neighbour(grade) -> str:
    """What becomes of a right submission, before any other."""
    outcome = grade(handed_in(None))
    assert scores(nbformat.reads(outcome.notebook, 4)) == POINTS
    return outcome.notebook


def scores(nb) -> dict[str, float]:
    """Points by graded cell, as nbgrader takes them from the outputs."""
    graded = [c for c in nb.cells if c.metadata.get("nbgrader", {}).get("grade")]
    return {c.metadata.nbgrader.grade_id: determine_grade(c)[0] for c in graded}


def shown(nb) -> str:
    """All that a learner is shown of a graded notebook, but their own text."""
    nb, _ = HideHidden().preprocess(copy.deepcopy(nb), {})
    said = [out for c in nb.cells if c.cell_type == "code" for out in c.outputs]
    return json.dumps([dict(out) for out in said])


def hidden() -> list[str]:
    """What no learner may see: lines of hidden tests, and the digits of their inputs."""
    with checks.hidden():
        inputs = [checks.rng("sample", n).normal(5).tolist() for n in ("double", "triple")]
    digits = [f"{abs(x):.9f}"[2:6] for xs in inputs for x in xs]
    return [*digits, "hidden_input_double", "hidden_input_triple", "secret_of"]


def left_over() -> list[str]:
    """Processes of our submissions that are still there: of our sandboxes all but keepers."""
    import psutil

    found = []
    for sandbox in execute._running.values():
        keeper = psutil.Process(sandbox._bwrap.pid).children()[0]
        found += [str(p) for p in keeper.children(recursive=True)]
    return found


def check(attack: Attack, outcome) -> None:
    """Compare what became of a submission with what its file says."""
    if "why" in attack.says:
        assert not outcome.notebook and re.search(attack.says["why"], outcome.why), outcome.why
        return
    assert outcome.notebook, outcome.why
    nb = nbformat.reads(outcome.notebook, 4)
    code = [c for c in nb.cells if c.cell_type == "code"]
    errors = [out for c in code for out in c.outputs if out.output_type == "error"]
    messages = "\n".join(out.evalue for out in errors)
    want = {name: 0.0 if name in attack.fails else p for name, p in POINTS.items()}
    assert scores(nb) == want, (outcome.notes, messages)
    assert re.search(attack.says.get("ended", ""), " ".join(outcome.notes)), outcome.notes
    assert re.search(attack.says.get("says", ""), messages), messages
    assert all(set(c.metadata) == {"nbgrader"} for c in code if "nbgrader" in c.metadata)
    told = shown(nb)
    assert len(told) < 8_000_000
    assert not [text for text in hidden() if text in told], told[-3000:]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.path.stem)
def test_it_gets_nothing_and_harms_nobody(attack, grade, neighbour):
    for _ in range(2 if "twice" in attack.says else 1):
        check(attack, grade(handed_in(attack)))
    assert not left_over()
    assert not [p for p in ("/", "/tmp", "/dev/shm") if Path(p, "left-behind").exists()]
    assert grade(handed_in(None)).notebook == neighbour


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [a for a in ATTACKS if "stock" in a.says], ids=lambda a: a.path.stem
)
def test_it_wins_where_nbgrader_runs_tests_and_answers_in_one_process(
    attack, tmp_path, monkeypatch
):
    from nbgrader.preprocessors import Execute

    monkeypatch.setenv("LLMCOURSE_SALT", "sample")
    nb = nbformat.reads(handed_in(attack).decode(), 4)
    tests = {c["id"]: c["source"] for c in source()["cells"] if c["id"] in POINTS}
    for c in nb.cells:
        c.source = tests.get(c.id, c.source)  # hidden tests, put back as nbgrader does
    Execute(timeout=120).preprocess(nb, {"metadata": {"path": str(tmp_path)}})
    if attack.says["stock"] == "shows":
        said = json.dumps([c.outputs for c in nb.cells if c.cell_type == "code"])
        assert [text for text in hidden() if text in said]
    for name in re.findall(r"[\w-]+-check", attack.says["stock"]):
        assert scores(nb)[name] == POINTS[name]


def test_there_are_attacks_of_every_kind():
    assert len(ATTACKS) >= 60
    assert sum("stock" in a.says for a in ATTACKS) >= 6
    assert sum("why" in a.says for a in ATTACKS) >= 6


# Files and folders, through nbgrader's own command.
RIGHT = {
    "double": "def double(x):\n    return 2 * x",
    "triple": "def triple(x):\n    return 3 * x",
}


def autograde(classroom, learner: str) -> bool:
    """Say whether `nbgrader autograde` took the submission."""
    return bool(classroom.api.autograde("04_sample", learner)["success"])


def test_an_empty_resubmission_replaces_a_good_one(classroom):
    classroom.hand_in("ada", RIGHT, "2026-11-01 10:00:00 UTC")
    assert autograde(classroom, "ada") and classroom.scores() == {"ada": (4, 4)}
    classroom.hand_in("ada", RIGHT | {"triple-check": None}, "2026-11-02 10:00:00 UTC")
    assert autograde(classroom, "ada") and classroom.scores() == {"ada": (4, 0)}
    classroom.hand_in("ada", {}, "2026-11-03 10:00:00 UTC")
    assert autograde(classroom, "ada") and classroom.scores() == {"ada": (0, 0)}


def test_files_that_are_no_notebooks_leave_the_class_as_it_was(classroom):
    classroom.hand_in("ada", RIGHT)
    assert autograde(classroom, "ada")
    before = classroom.table()
    bad = {"ben": b"\x89PNG not JSON", "cy": b'{"cells": ["\xe9"]}', "dot": b"[" * 10**6}
    for learner, raw in bad.items():
        classroom.hand_in(learner, raw)
        assert not autograde(classroom, learner)
    classroom.hand_in("eve", None)
    (classroom.folder("eve") / "another_name.ipynb").write_bytes(classroom.notebook(RIGHT))
    autograde(classroom, "eve")
    assert [row for row in classroom.table() if row[0] == "ada"] == before
    earned = {s: points for s, points in classroom.scores().items() if any(points)}
    assert earned == {"ada": (4, 4)}


def test_two_notebooks_count_as_one(classroom):
    classroom.hand_in("ada", {})
    (classroom.folder("ada") / "sample-2.ipynb").write_bytes(classroom.notebook(RIGHT))
    autograde(classroom, "ada")
    assert not any(any(points) for points in classroom.scores().values())


def test_no_link_is_followed(classroom, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("LEFT ELSEWHERE")
    classroom.hand_in("ada", RIGHT)
    (classroom.folder("ada") / "notes.txt").symlink_to(secret)
    assert not autograde(classroom, "ada")
    left = [p for p in classroom.root.rglob("*") if p.is_file() and not p.is_symlink()]
    assert not [p for p in left if b"LEFT ELSEWHERE" in p.read_bytes()]


def test_no_name_leads_elsewhere(classroom):
    classroom.hand_in("ada", RIGHT)
    for name in ("../ada", "ada/../../solutions", "/etc"):
        assert not autograde(classroom, name)
    assert [p.name for p in classroom.root.parent.iterdir()] == ["course"]
