"""The release: the same bytes every time, nothing but what learners should get."""

import json
from pathlib import Path

import pytest

from llmcourse.course import CourseError
from llmcourse.grading import release, stock
from llmcourse.notebooks import is_canonical

ROOT = Path(__file__).parents[2]
NOTEBOOK = Path("04_sample/sample.ipynb")


def source_of(course):
    return course / "solutions" / NOTEBOOK


def replace(course, old, new):
    text = source_of(course).read_text()
    assert old in text
    source_of(course).write_text(text.replace(old, new))


def test_the_same_sources_give_the_same_bytes(course):
    assert release.make(course) == release.make(course)


def test_nbgrader_itself_releases_the_notebook_and_data_alone(course):
    beside = source_of(course).parent
    (beside / "data").mkdir()
    (beside / "data" / "words.txt").write_text("one two")
    (beside / "sample.nb.md").write_text("secret_of_double = x * 2")
    (beside / "notes.txt").write_text("notes")
    (beside / ".hidden").write_text("hidden")
    (beside / "drafts").mkdir()
    (beside / "drafts" / "old.py").write_text("old = 1")
    stock.must(stock.api(course).generate_assignment("04_sample"), "generating")
    made = (course / "exercises").rglob("*")
    assert {p.name for p in made if p.is_file()} == {"sample.ipynb", "words.txt"}


def test_the_released_notebook_has_stubs_and_no_hidden_test(course):
    text = release.make(course)[NOTEBOOK].decode()
    cells = {c["id"]: "".join(c["source"]) for c in json.loads(text)["cells"]}
    assert cells["double"].endswith("# YOUR CODE HERE\n    raise NotImplementedError()")
    assert cells["double-check"].count("\n") == 0
    assert "HIDDEN" not in text and "secret_of" not in text
    assert is_canonical(text)


def test_the_users_gradebook_is_not_touched(course):
    (course / "gradebook.db").write_bytes(b"grades")
    release.make(course)
    assert (course / "gradebook.db").read_bytes() == b"grades"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("### END HIDDEN TESTS", "### END HIDEN TESTS", "HIDEN"),
        ("### BEGIN SOLUTION", "### BEGIN SOLUTON", "SOLUTON"),
        ("# A sample", "secret_of_double = x * 2 ; return secret_of_double.clone()", "double"),
        (
            "# A sample",
            "# hidden_input_double = checks.rng('sample', 'double').normal(5)",
            "test",
        ),
    ],
)
def test_a_source_that_would_give_itself_away_is_refused(course, old, new, why):
    replace(course, old, new)
    with pytest.raises(release.ReleaseError, match=why):
        release.make(course)


def test_a_second_notebook_is_refused(course):
    (source_of(course).parent / "scratch.ipynb").write_text(source_of(course).read_text())
    with pytest.raises(release.ReleaseError, match="scratch"):
        release.make(course)


def test_writing_reports_each_change_and_removes_what_is_gone(course):
    target, files = course / "exercises", {Path("04_sample/sample.ipynb"): b"new"}
    (target / "03_gone").mkdir()
    (target / "03_gone" / "gone.ipynb").write_text("old")
    assert release.write(files, target) == [
        "new      04_sample/sample.ipynb",
        "gone     03_gone/gone.ipynb",
    ]
    assert [p.name for p in target.iterdir()] == ["04_sample"]
    assert release.write(files, target) == []
    assert release.write({NOTEBOOK: b"newer"}, target) == ["changed  04_sample/sample.ipynb"]


def test_the_secret_is_made_once_and_is_private(course):
    first = stock.salt(course)
    assert len(first) == 32 and stock.salt(course) == first
    assert (course / stock.SECRET).stat().st_mode & 0o077 == 0


def test_an_empty_secret_is_refused(course):
    (course / stock.SECRET).write_text("\n")
    with pytest.raises(CourseError, match="delete it"):
        stock.salt(course)


def test_settings_need_a_course_folder(tmp_path):
    with pytest.raises(CourseError, match=r"nbgrader_config\.py"):
        stock.settings(tmp_path)


def test_the_committed_exercises_are_what_the_solutions_give():
    files = release.make(ROOT)
    assert files, "solutions/ holds no assignment"
    assert release.differences(files, ROOT / "exercises") == [], "run: make exercises"
