"""A class of six sample learners, taken through nbgrader from release to grades.

Everything happens in _build/demo_class/, a course folder of its own: released, handed in
through an exchange, collected, autograded, with feedback and a table of grades. The learners'
work comes from the zoo (tests/exercises/zoo), which says what each answer deserves.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcourse.course import Assignment, CourseError, assignments
from llmcourse.grading import autograde, leaks, report, stock, zoo
from llmcourse.grading.sandbox import Sandbox
from llmcourse.progress import bar

LEARNERS = 6
FOLDER = Path("_build") / "demo_class"


@dataclass(frozen=True)
class Handed:
    """One submission: who, what, and the points each graded cell is worth and deserves."""

    learner: str
    assignment: Assignment
    work: str
    notebook: zoo.Notebook
    points: dict[str, float]
    deserves: dict[str, float]


def run(root: Path) -> int:
    """Grade the class; print its table; return 1 when a grade is not what the zoo says."""
    course = root / FOLDER
    todo = assignments(root / "solutions")
    if not todo:
        raise CourseError("no assignments in solutions/: there is nothing to grade")
    for one in todo:
        _chosen(root, one)  # before the long work, not after
    with Sandbox():  # likewise: it says so where it cannot be had
        pass
    api = set_up(root, course)
    _each("releasing", todo, lambda one: _release(api, one))
    class_work = [work for one in todo for work in _class_work(root, course, one)]
    _each("handing in", class_work, lambda work: _hand_in(api, course, work))
    _each("collecting", todo, lambda one: stock.must(api.collect(one.name), "collecting"))
    for one in todo:
        autograde.run(course, one.name)
    _each("feedback", todo, lambda one: _give_feedback(api, one))
    found = leaks.check_feedback(course, public=leaks.public_text(root))
    scores = {(w.learner, w.assignment.name): _scores(api, w) for w in class_work}
    with (course / "grades.csv").open("w", newline="", encoding="utf-8") as file:
        report.export(course, file, "csv")
    print(_table(class_work, scores))
    print(f"grades: {FOLDER}/grades.csv   feedback: {FOLDER}/feedback/")
    wrong = [*_mismatches(class_work, scores), *map(str, found)]
    print("\n".join(wrong) or "Every grade is what the work deserves.")
    return 1 if wrong else 0


def _each(doing: str, things: list[Any], do: Callable[[Any], None]) -> None:
    with bar(len(things), what=f"{doing:<11}") as done:
        for thing in things:
            do(thing)
            done.update()


def set_up(root: Path, course: Path) -> Any:
    """Make the course folder anew; its secret is fixed: every run sees the same tests."""
    shutil.rmtree(course, ignore_errors=True)
    course.mkdir(parents=True)
    own = course / "exchange"  # never the real one of this machine
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    settings = (root / "nbgrader_config.py").read_text(encoding="utf-8")
    settings += f"\nc.Exchange.root = {str(own)!r}\nc.Exchange.cache = {str(own / 'cache')!r}\n"
    (course / "nbgrader_config.py").write_text(settings, encoding="utf-8")
    shutil.copytree(root / "solutions", course / "solutions")
    (course / stock.SECRET).write_text("a demonstration\n", encoding="utf-8")
    return stock.api(course)


def _release(api: Any, one: Assignment) -> None:
    stock.must(api.generate_assignment(one.name), f"generating {one.name}")
    stock.must(api.release_assignment(one.name), f"releasing {one.name}")


def _chosen(root: Path, one: Assignment) -> list[zoo.Entry | None]:
    """Return two right ways and three mistakes from the zoo, and None: left untouched."""
    entries = zoo.entries(root / "tests" / "exercises" / "zoo" / one.name)
    right = [e for e in entries if e.right]
    wrong = [e for e in entries if not e.right]
    if len(right) < 2 or len(wrong) < 3:
        raise CourseError(f"the zoo of {one.name} has fewer than 2 right and 3 wrong answers")
    return [*right[:2], wrong[0], wrong[len(wrong) // 2], wrong[-1], None]


def _class_work(root: Path, course: Path, one: Assignment) -> list[Handed]:
    """Return what each learner hands in, and what it deserves."""
    source = zoo.read_notebook(one.notebook(course / "solutions"))
    release = zoo.read_notebook(one.notebook(course / "exercises"))
    points = {i["grade_id"]: float(i["points"]) for i in map(zoo.grade_info, source["cells"])
              if i.get("grade") and not i.get("solution")}  # fmt: skip
    work = []
    for number, entry in enumerate(_chosen(root, one)):
        notebook = zoo.submission(release, source, entry) if entry else release
        drop_markers(notebook)
        fails = entry.fails if entry else points.keys()
        deserves = {cell: 0.0 if cell in fails else points[cell] for cell in points}
        # Turned by one with every assignment, so that nobody is right or wrong in all.
        learner = f"learner-{(number + int(one.number)) % LEARNERS + 1}"
        name = entry.name if entry else "untouched"
        work.append(Handed(learner, one, name, notebook, points, deserves))
    return work


def drop_markers(notebook: zoo.Notebook) -> None:
    """A learner's answer, where it is the instructor's, has no markers around it."""
    for cell in notebook["cells"]:
        kept = [line for line in cell["source"].split("\n") if not leaks.is_marker(line)]
        cell["source"] = "\n".join(kept)


def _hand_in(api: Any, course: Path, work: Handed) -> None:
    """Submit through the exchange, as a learner's `nbgrader submit` does."""
    from nbgrader.utils import temp_attrs

    desk = course / "learners" / work.learner
    path = work.assignment.notebook(desk)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(work.notebook, indent=1) + "\n", encoding="utf-8")
    name = work.assignment.name
    with temp_attrs(api.coursedir, assignment_id=name, student_id=work.learner):
        submit = api.exchange.Submit(
            coursedir=api.coursedir, authenticator=api.authenticator, parent=api
        )
        submit.assignment_dir = str(desk)
        submit.start()


def _give_feedback(api: Any, one: Assignment) -> None:
    stock.must(api.generate_feedback(one.name), f"feedback for {one.name}")


def _scores(api: Any, work: Handed) -> dict[str, float]:
    name = work.assignment
    with api.gradebook as book:
        notebook = book.find_submission_notebook(name.slug, name.name, work.learner)
        return {g.name: g.score for g in notebook.grades if g.name in work.deserves}


Scores = dict[tuple[str, str], dict[str, float]]


def _mismatches(class_work: list[Handed], scores: Scores) -> list[str]:
    lines = []
    for work in class_work:
        got = scores[work.learner, work.assignment.name]
        for cell, points in work.deserves.items():
            if got.get(cell) != points:
                lines.append(
                    f"{work.learner}, {work.assignment.name} ({work.work}), {cell}: "
                    f"got {got.get(cell)}, deserves {points}"
                )
    return lines


def _table(class_work: list[Handed], scores: Scores) -> str:
    """Return a line for each submission: points got, of how many, for which work."""
    width = max(len(work.assignment.name) for work in class_work)
    lines = []
    for work in class_work:
        got = sum(scores[work.learner, work.assignment.name].values())
        due, of = sum(work.deserves.values()), sum(work.points.values())
        note = "" if got == due else f" (deserves {due:g})"
        points = f"{got:g}/{of:g}"
        lines.append(
            f"{work.assignment.name:<{width}}  {work.learner}  {points:>6}  {work.work}{note}"
        )
    return "\n".join(["", *sorted(lines), ""])
