"""What became of every submission, for a person and for other programs."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from nbgrader.api import Assignment, Grade, SubmittedAssignment, SubmittedNotebook
from sqlalchemy import case, func, or_

from llmcourse.course import CourseError, looked_for
from llmcourse.grading import stock
from llmcourse.grading.autograde import (
    FAILED,
    GRADED,
    WAITING,
    Journal,
    Release,
    Submission,
    graded_file,
    handed_in,
    in_one_line,
    scored,
    strays,
    time_of,
)

KEPT = "the earlier grade is kept"
MOST = 10  # lines of what is in the wrong place
BY_HAND = "needs a mark by hand: formgrader, Manual Grading"
RISKY = tuple("=+-@\t\r\n＝＋－＠")  # a spreadsheet takes what begins so for a formula


@dataclass(frozen=True)
class Row:
    """One submission: its state; the score is the gradebook's, perhaps of an earlier one."""

    assignment: str
    student: str
    state: str
    why: str = ""
    notes: str = ""
    score: float | None = None
    max_score: float | None = None
    late_penalty: float | None = None
    needs_manual_grade: bool = False


def rows(course: Path, assignment: str | None = None) -> list[Row]:
    """Every submission of one assignment, or of all that the gradebook knows."""
    with in_one_line(), Journal(course) as journal:
        api = stock.api(course)
        with api.gradebook as book:
            names = sorted(a.name for a in book.assignments)
            if assignment is not None and assignment not in names:
                there = ", ".join(names) or "none yet"
                raise CourseError(f"the gradebook has no {assignment}; it has: {there}")
            wanted = [assignment] if assignment else names
            return [
                row
                for name in wanted
                for row in _rows(course, api, book, journal, Release(api, course, name))
            ]


def _rows(
    course: Path, api: Any, book: Any, journal: Journal, release: Release
) -> Iterator[Row]:
    name = release.assignment
    folders = dict(handed_in(api, name))
    scores = _scores(book, name)
    ours = journal.students(name)
    held, times = scored(api, book, name), _times(book, name)
    salt = stock.salt(course)
    for student in sorted({*folders, *ours, *scores}):
        score = scores.get(student, {})
        state, why, notes = GRADED, "", ""
        if student in folders:
            ones = release.submissions(student, folders[student])
            theirs = score and student not in ours  # by formgrader or `nbgrader autograde`
            ends = [
                (GRADED, "", "") if theirs and _by_nbgrader(api, one, times)
                else journal.entry(one, release.digest(one, salt), held) for one in ones
            ]  # fmt: skip
            state, why, notes = min(ends, key=lambda e: [FAILED, WAITING, GRADED].index(e[0]))
        elif not score:
            state, why = WAITING, "what was handed in is gone"
        if state == GRADED and not score:
            score = {"needs_manual_grade": True}  # there is nothing but what a person marks
        if state != GRADED and score:
            why = "; ".join(filter(None, [why, KEPT]))
        yield Row(name, student, state, why, notes, **score)


def _by_nbgrader(api: Any, one: Submission, times: dict[str, datetime | None]) -> bool:
    """Whether formgrader or `nbgrader autograde` graded just this hand-in."""
    path = graded_file(api, one.student, one.assignment, one.notebook)
    if one.why or one.student not in times or not path.is_file():
        return False
    return times[one.student] == (time_of(one.stamp) if one.stamp else None)


def _times(book: Any, assignment: str) -> dict[str, datetime | None]:
    """When each learner handed in, as the gradebook has it."""
    found = book.db.query(SubmittedAssignment.student_id, SubmittedAssignment.timestamp)
    return dict(found.filter(SubmittedAssignment.name == assignment).all())


def _scores(book: Any, assignment: str) -> dict[str, dict[str, Any]]:
    """What the gradebook has of each learner, read at once: a large class has many.

    Nothing of a submission that nbgrader noted and could not grade, which looks like a zero.
    """
    most = book.find_assignment(assignment).max_score
    ours = (
        book.db.query(SubmittedAssignment)
        .join(Assignment, SubmittedAssignment.assignment)
        .join(SubmittedNotebook, SubmittedAssignment.notebooks)
        .filter(Assignment.name == assignment)
    )
    student = SubmittedAssignment.student_id
    late = ours.with_entities(student, func.sum(SubmittedNotebook.late_submission_penalty))
    penalties = {who: penalty or 0.0 for who, penalty in late.group_by(student)}
    found: dict[str, dict[str, Any]] = {}
    has_score = or_(Grade.auto_score.is_not(None), Grade.manual_score.is_not(None))
    grades = ours.join(Grade, SubmittedNotebook.grades).group_by(student)
    for who, score, by_hand, marks in grades.with_entities(
        student, func.sum(Grade.score), func.sum(case((Grade.needs_manual_grade, 1), else_=0)),
        func.sum(case((has_score, 1), else_=0)),
    ):  # fmt: skip
        if marks:
            found[who] = {
                "score": max(0.0, score - penalties[who]), "max_score": most,
                "late_penalty": penalties[who], "needs_manual_grade": by_hand > 0,
            }  # fmt: skip
    return found


def status(course: Path, assignment: str | None = None) -> str:
    """A table of counts, and a line for each submission that somebody should look at.

    At the end, what was handed in where nothing is looked for.
    """
    found = rows(course, assignment)
    names = sorted({row.assignment for row in found})
    width = max([10, *map(len, names)])
    lines = [f"{'assignment':{width}}{GRADED:>9}{FAILED:>9}{WAITING:>9}"]
    for name in names:
        states = [row.state for row in found if row.assignment == name]
        counts = "".join(f"{states.count(s):9}" for s in (GRADED, FAILED, WAITING))
        lines.append(f"{name:{width}}{counts}")
    for row in found:
        told = [row.why or row.notes] if row.state == FAILED or row.notes else []
        told += [BY_HAND] if row.needs_manual_grade else []
        lines += [f"{row.assignment}, {row.student}: {'; '.join(told)}"] if told else []
    lines = lines if found else ["nothing has been handed in"]
    return "\n".join([*lines, *_in_the_wrong_place(course, assignment)])


def _in_the_wrong_place(course: Path, assignment: str | None) -> list[str]:
    with in_one_line():
        api = stock.api(course)
        with api.gradebook as book:
            known = {one.name for one in book.assignments}
        found = strays(api, known)
    example = looked_for(assignment or min(known, default="NN_NAME"))
    head = f"not recognised; looked for is {example}, of assignments in the gradebook:"
    more = [f"  and {len(found) - MOST} more"] if len(found) > MOST else []
    return [head, *(f"  {name}" for name in found[:MOST]), *more] if found else []


def export(course: Path, file: TextIO, kind: str, assignment: str | None = None) -> int:
    """Write all grades as CSV; returns how many rows of learners.

    Scores are what counts: less the late penalty. csv: a row for each submission, with its
    state. canvas, moodle: a row for each learner, a column for each assignment; a cell is empty
    where the gradebook has no grade. Canvas takes an empty cell for "no grade" and would delete
    one that was entered by hand: export the assignment alone that is to be imported.
    """
    found = rows(course, assignment)
    write = {"csv": _plain, "canvas": _canvas, "moodle": _moodle}[kind]
    table = list(write(course, found))
    csv.writer(file, lineterminator="\n").writerows([[_safe(x) for x in row] for row in table])
    return len(found) if kind == "csv" else len({row.student for row in found})


def _safe(value: Any) -> Any:
    """A text that no spreadsheet takes for a formula; nothing for None."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(RISKY) else value


def _plain(course: Path, found: list[Row]) -> Iterator[list[Any]]:
    yield ["assignment", "student_id", "status", "reason", "score", "max_score",
           "late_submission_penalty", "needs_manual_grade", "notes"]  # fmt: skip
    for r in found:
        manual = None if r.score is None and r.state != GRADED else int(r.needs_manual_grade)
        yield [r.assignment, r.student, r.state, r.why, r.score, r.max_score, r.late_penalty,
               manual, r.notes]  # fmt: skip


def _canvas(course: Path, found: list[Row]) -> Iterator[list[Any]]:
    """As Canvas imports grades: instructure/canvas-lms, lib/gradebook_importer.rb.

    It finds a learner by "ID", else "SIS User ID", else "SIS Login ID", else the name.
    """
    names, by = _by_student(found)
    most = {row.assignment: row.max_score for row in found if row.max_score is not None}
    yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *names]
    yield ["    Points Possible", "", "", "", "", *(most.get(n) for n in names)]
    for student, who in _people(course, by):
        name = ", ".join(x for x in (who["last_name"], who["first_name"]) if x) or student
        scores = [by[student].get(n) for n in names]
        yield [name, who["lms_user_id"], student, student, "", *scores]


def _moodle(course: Path, found: list[Row]) -> Iterator[list[Any]]:
    """As Moodle exports grades and takes them back: docs.moodle.org/311/en/Grade_import.

    Its import asks which column tells learners apart: "ID number" or "Email address".
    """
    names, by = _by_student(found)
    yield ["First name", "Last name", "ID number", "Email address", *names]
    for student, who in _people(course, by):
        scores = [by[student].get(n) for n in names]
        yield [who["first_name"], who["last_name"], student, who["email"], *scores]


def _by_student(found: Iterable[Row]) -> tuple[list[str], dict[str, dict[str, float | None]]]:
    by: dict[str, dict[str, float | None]] = {}
    for row in found:
        by.setdefault(row.student, {})[row.assignment] = row.score
    return sorted({name for scores in by.values() for name in scores}), by


WHO = ("first_name", "last_name", "email", "lms_user_id")


def _people(course: Path, by: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each learner with what the gradebook knows of them."""
    with stock.api(course).gradebook as book:
        known = {s.id: {n: getattr(s, n) or "" for n in WHO} for s in book.students}
    for student in sorted(by):
        yield student, known.get(student, dict.fromkeys(WHO, ""))
