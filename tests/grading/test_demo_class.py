"""The sample class, through nbgrader and the sandbox from release to grades."""

import csv
import os
import re
import sys
from pathlib import Path

import pytest

from llmcourse.course import CourseError, assignments
from llmcourse.grading import demo, leaks, sandbox

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def grades(course):
    with (course / demo.FOLDER / "grades.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {(r["student_id"], r["assignment"]): float(r["score"]) for r in rows}


def test_the_small_class_gets_its_grades_and_feedback_that_tells_nothing(course, capsys):
    (course / "gradebook.db").write_bytes(b"the user's own")
    assert demo.run(course) == 0
    said = capsys.readouterr().out
    assert "Every grade is what the work deserves." in said
    assert re.search(r"^04_sample +learner-1 +\d/8 +\w+$", said, re.M)
    assert max(map(len, said.splitlines())) <= 100
    assert sorted(grades(course).values()) == [0, 4, 4, 4, 8, 8]
    assert (course / "gradebook.db").read_bytes() == b"the user's own"
    made = course / demo.FOLDER
    pages = sorted((made / "feedback").rglob("sample.html"))
    assert len(pages) == 6
    assert leaks.check_feedback(made) == []
    text = "\n".join(page.read_text() for page in pages)
    assert "hidden_input" not in text and "HIDDEN TESTS" not in text
    assert text.count('<a href="#double-check">double</a> (Score: ') == 6
    assert "is not written yet" in text and "hidden check of double" in text
    assert "<script>stolen" not in text and "<b>bold</b>" in text
    assert "https://" not in re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def test_a_wrong_grade_is_told_and_fails(course, capsys):
    zoo = course / "tests" / "exercises" / "zoo" / "04_sample"
    right = zoo / "right_sum.py"
    right.write_text(right.read_text().replace("x + x + x", "x + x"))
    assert demo.run(course) == 1
    said = capsys.readouterr().out
    assert "right_sum (deserves 8)" in said
    assert "(right_sum), triple-check: got 0.0, deserves 4.0" in said


def test_a_zoo_that_is_too_small_is_one_clear_line(course):
    (course / "tests" / "exercises" / "zoo" / "04_sample" / "right_sum.py").unlink()
    with pytest.raises(CourseError, match="04_sample has fewer than 2 right"):
        demo.run(course)


def test_where_nothing_can_be_graded_it_says_so_before_any_work(course, monkeypatch):
    monkeypatch.setattr(sandbox, "OWN", (os.path.realpath(sys.prefix),))
    with pytest.raises(CourseError, match="install the course elsewhere"):
        demo.run(course)
    assert not (course / demo.FOLDER).exists()


def test_the_courses_own_class_gets_its_grades(capfd):
    assert demo.run(ROOT) == 0
    names = {a.name for a in assignments(ROOT / "solutions")}
    assert {name for _, name in grades(ROOT)} == names
    shown = capfd.readouterr()
    table = [line for line in shown.out.splitlines() if "  learner-" in line]
    assert len(table) == demo.LEARNERS * len(names) and max(map(len, table)) <= 100
    assert "Warning" not in shown.out + shown.err
