"""What became of every submission, as a table for people and as CSV for other programs."""

import csv
import io
import runpy
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")

from llmcourse.course import CourseError
from llmcourse.grading import report, stock
from llmcourse.grading.autograde import ELSEWHERE, FAILED, GRADED, WAITING
from llmcourse.grading.report import KEPT

HERE = runpy.run_path(str(Path(__file__).with_name("classroom.py")))
prepared, classroom, pool, known, recorded = (
    HERE[n] for n in ("prepared", "classroom", "pool", "known", "recorded")
)
NAME, SLUG, WORK, EARNED = HERE["NAME"], HERE["SLUG"], HERE["WORK"], HERE["GRADED"]


@pytest.fixture
def graded(classroom, recorded):
    classroom.whole_class().run(recorded)
    return classroom


def table(room, kind, assignment=None):
    """The rows of an export, and how many it said there are."""
    file = io.StringIO(newline="")
    count = report.export(room.root, file, kind, assignment)
    assert "\r" not in file.getvalue()
    return list(csv.reader(io.StringIO(file.getvalue()))), count


def people(room):
    who = {
        "ada": {"first_name": "Ada", "last_name": "Lovelace", "email": "ada@example.org",
                "lms_user_id": "17"},
        "ben": {"first_name": "=cmd|' /C calc'!A0", "last_name": "@Best", "email": "+1"},
        "cy": {"last_name": "Ünal, Cy"},
    }  # fmt: skip
    with room.api.gradebook as book:
        for name, known_of_them in who.items():
            book.update_or_create_student(name, **known_of_them)


# --- States.


def test_before_anything_is_graded_all_wait(classroom):
    classroom.whole_class()
    assert {r.state for r in classroom.rows().values()} == {WAITING}
    assert all(r.score is None for r in classroom.rows().values())


def test_each_submission_has_its_state_and_what_is_graded_its_score(graded):
    rows = graded.rows()
    assert {n: r.state for n, r in rows.items()} == {
        n: GRADED if n in EARNED else FAILED for n in WORK
    }
    assert {n: r.score for n, r in rows.items() if r.score is not None} == {
        n: sum(points) for n, points in EARNED.items()
    }
    assert all(r.max_score == 8 for r in rows.values() if r.state == GRADED)


def test_the_table_counts_and_tells_of_what_is_not_plain(graded):
    said = report.status(graded.root)
    assert said == report.status(graded.root, NAME)
    head, counts, *lines = said.splitlines()
    assert head.split() == ["assignment", GRADED, FAILED, WAITING]
    assert counts.split() == [NAME, "6", "2", "0"]
    assert f"{NAME}, hal: sample.ipynb was not handed in" in lines
    assert f"{NAME}, eve: double-check was missing and put back" in lines
    assert not any("ada" in line or "ben" in line for line in lines)


def test_what_needs_a_mark_by_hand_is_told_until_it_has_one(graded):
    """Also where there is something else to tell."""
    assert report.BY_HAND not in report.status(graded.root)
    with graded.api.gradebook as book:
        for name in ("ada", "eve"):
            book.find_submission_notebook(SLUG, NAME, name).grades[0].needs_manual_grade = True
        book.db.commit()
    lines = report.status(graded.root).splitlines()
    assert f"{NAME}, ada: {report.BY_HAND}" in lines
    note = "double-check was missing and put back"
    assert f"{NAME}, eve: {note}; {report.BY_HAND}" in lines
    assert sum(report.BY_HAND in line for line in lines) == 2


def test_what_only_a_person_can_mark_is_graded_but_needs_the_mark(graded):
    with graded.api.gradebook as book:
        for grade in book.find_submission_notebook(SLUG, NAME, "ada").grades:
            grade.auto_score, grade.needs_manual_grade = None, True
        book.db.commit()
    row = graded.rows()["ada"]
    assert (row.state, row.score, row.needs_manual_grade) == (GRADED, None, True)
    assert f"{NAME}, ada: {report.BY_HAND}" in report.status(graded.root)
    [found] = [row for row in table(graded, "csv")[0] if row[1] == "ada"]
    assert found[4] == "" and found[7] == "1"


def test_a_course_without_submissions_says_so(classroom):
    assert report.status(classroom.root) == "nothing has been handed in"


def test_at_the_end_it_names_what_lies_in_the_wrong_place(graded):
    plain = report.status(graded.root)
    for number in range(12):
        (graded.root / "submitted" / f"{number:02}.ipynb").touch()
    for said in (report.status(graded.root), report.status(graded.root, NAME)):
        assert said.startswith(plain)
        head, *lines = said.removeprefix(plain).strip().splitlines()
        assert f"looked for is submitted/LEARNER/{NAME}/{SLUG}.ipynb" in head
        assert [line.strip() for line in lines] == [
            *(f"submitted/{number:02}.ipynb" for number in range(10)), "and 2 more"
        ]  # fmt: skip


def test_work_for_an_exercise_that_the_gradebook_does_not_know_is_named(classroom):
    (classroom.root / "submitted" / "ada" / "05_other").mkdir(parents=True)
    first, _, stray = report.status(classroom.root).splitlines()
    assert first == "nothing has been handed in" and stray.strip() == "submitted/ada/05_other"


def test_an_assignment_that_is_not_there_is_told_with_those_that_are(classroom):
    with pytest.raises(CourseError, match="the gradebook has no 09_x; it has: 04_sample"):
        report.status(classroom.root, "09_x")


def test_what_is_handed_in_anew_waits_and_keeps_its_grade(graded):
    graded.hand_in("ada", {"double": "pass"})
    row = graded.rows()["ada"]
    assert (row.state, row.why, row.score) == (WAITING, KEPT, 8)
    assert graded.rows()["ben"].state == GRADED


def test_what_disappeared_after_grading_is_still_graded(graded):
    import shutil

    shutil.rmtree(graded.root / "submitted")
    rows = graded.rows()
    assert rows["ada"].state == GRADED and rows["ada"].score == 8
    assert (rows["fay"].state, rows["fay"].why) == (WAITING, "what was handed in is gone")


def test_what_nbgrader_graded_by_itself_is_graded(classroom, pool, known):
    """As `nbgrader autograde` and formgrader's button do it."""
    classroom.hand_in("ada", WORK["ada"][0], "2026-11-01 10:00:00 UTC")
    classroom.hand_in("ben", WORK["ben"][0])
    classroom.hand_in("eve", WORK["eve"][0])
    assert classroom.api.autograde(NAME, "ada")["success"]
    assert classroom.api.autograde(NAME, "eve")["success"]
    rows = classroom.rows()
    assert (rows["ada"].state, rows["ada"].score) == (GRADED, 8)
    assert (rows["eve"].state, rows["eve"].score) == (GRADED, 4)
    assert (rows["ben"].state, rows["ben"].score) == (WAITING, None)
    (classroom.root / "autograded" / "eve" / NAME / f"{SLUG}.ipynb").unlink()
    assert classroom.rows()["eve"].state == WAITING
    classroom.hand_in("ada", {}, "2026-11-02 10:00:00 UTC")
    row = classroom.rows()["ada"]
    assert (row.state, row.why, row.score) == (WAITING, KEPT, 8)
    classroom.hand_in("ada", {}, "24:22222222222222222222222222222200")
    assert classroom.rows()["ada"].state == WAITING


def test_what_nbgrader_could_not_grade_has_no_score(classroom):
    """nbgrader notes the submission all the same, which reads like a zero."""
    classroom.hand_in("fay", WORK["fay"][0])
    assert not classroom.api.autograde(NAME, "fay")["success"]
    assert "fay" in classroom.scores()
    row = classroom.rows()["fay"]
    assert (row.state, row.score) == (WAITING, None)


@pytest.mark.parametrize("kind", ["csv", "canvas", "moodle"])
def test_a_gradebook_without_the_scores_makes_nothing_graded(graded, kind):
    """A new one, or one that was lost: what the journal says is not enough."""
    (graded.root / "gradebook.db").rename(graded.root / "lost.db")
    stock.must(graded.api.generate_assignment(NAME, force=True), "generating")
    counts = report.status(graded.root).splitlines()[1].split()
    assert counts == [NAME, "0", "2", str(len(EARNED))]
    rows, _ = table(graded, kind)
    assert not any(GRADED in row for row in rows)
    if kind == "csv":
        waiting = [row for row in rows if row[2] == WAITING]
        assert len(waiting) == len(EARNED) and {row[4] for row in waiting} == {""}
        assert {row[3] for row in waiting} == {ELSEWHERE}


# --- Exports.


def test_a_row_for_each_submission_with_its_state_and_no_score_for_none(graded):
    rows, count = table(graded, "csv")
    assert count == len(rows) - 1 == len(WORK)
    found = {r[1]: dict(zip(rows[0], r, strict=True)) for r in rows[1:]}
    assert found["ada"]["score"] == "8.0" and found["ada"]["status"] == GRADED
    assert found["fay"]["score"] == "" and found["fay"]["reason"].startswith("the file is not")
    assert (
        found["fay"]["needs_manual_grade"] == "" and found["ada"]["needs_manual_grade"] == "0"
    )
    assert found["cy"]["score"] == "0.0"


def test_the_score_is_what_counts_less_the_late_penalty(classroom, recorded):
    classroom.setting('c.LateSubmissionPlugin.penalty_method = "zero"')
    classroom.due("2026-11-01T12:00:00")
    classroom.whole_class().hand_in("ada", None, "2026-11-05 12:00:00 UTC")
    classroom.run(recorded)
    row = classroom.rows()["ada"]
    assert (row.score, row.late_penalty) == (0, 8)
    assert classroom.rows()["ben"].score == 4


def test_canvas_gets_the_columns_that_it_reads(graded):
    people(graded)
    rows, count = table(graded, "canvas")
    head, points, *learners = rows
    assert head == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", NAME]
    assert "Points Possible" in points[0] and points[-1] == "8.0"
    assert count == len(learners) == len(WORK)
    assert learners[0] == ["Lovelace, Ada", "17", "ada", "ada", "", "8.0"]
    assert learners[2][0] == "Ünal, Cy"
    scores = {r[2]: r[-1] for r in learners}
    assert scores["fay"] == "" and scores["gus"] == "0.0"


def test_moodle_gets_the_columns_that_it_reads(graded):
    people(graded)
    rows, _ = table(graded, "moodle", NAME)
    assert rows[0] == ["First name", "Last name", "ID number", "Email address", NAME]
    assert rows[1] == ["Ada", "Lovelace", "ada", "ada@example.org", "8.0"]
    assert rows[4][2:] == ["dot", "", "4.0"]


@pytest.mark.parametrize("kind", ["csv", "canvas", "moodle"])
def test_no_cell_is_a_formula(classroom, recorded, kind):
    classroom.whole_class()
    for name in ("=1+1", "+x", "-x", "@x", "\tx", "＝x"):
        classroom.hand_in(name, WORK["hal"][0])
    classroom.run(recorded)
    people(classroom)
    rows, _ = table(classroom, kind)
    cells = [text for row in rows for text in row]
    assert not [text for text in cells if text.startswith(tuple("=+-@\t\r\n＝＋－＠"))]
    assert "'=1+1" in cells


def test_several_assignments_are_columns_in_their_order(graded):
    with graded.api.gradebook as book:
        book.add_assignment("02_other")
        book.add_notebook("other", "02_other")
    graded.hand_in("ada", None)
    folder = graded.root / "submitted" / "ada" / "02_other"
    folder.mkdir()
    rows, _ = table(graded, "canvas")
    assert rows[0][5:] == ["02_other", NAME]
    assert rows[2][5:] == ["", "8.0"]


def test_a_folder_with_signs_in_its_name_is_looked_through_as_any_other(classroom, recorded):
    odd = classroom.root.rename(classroom.root.with_name("course [1] *"))
    room = HERE["Classroom"](odd).whole_class()
    assert set(room.rows()) == set(WORK)
