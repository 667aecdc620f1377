"""my_work/: a learner's copies are made once, brought up to date, and never overwritten."""

import copy
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from llmcourse import lab
from llmcourse.course import CourseError

ONE = "04_sample/sample.ipynb"


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def sources(path):
    return {c["id"]: "".join(c["source"]) for c in load(path)["cells"]}


def change(path, edit):
    """Edit a notebook's cells ({id: cell}, list of cells) as JupyterLab or a release would."""
    book = load(path)
    edit({c["id"]: c for c in book["cells"]}, book["cells"])
    path.write_text(json.dumps(book, indent=1) + "\n", encoding="utf-8")


def new_release(root):
    def edit(cells, order):
        cells["title"]["source"] = "# A sample, in better words"
        cells["triple-check"]["metadata"]["nbgrader"]["points"] = 5
        order.remove(cells["triple"])
        order.append({"cell_type": "markdown", "id": "end", "metadata": {}, "source": "Done."})

    change(root / "exercises" / ONE, edit)


def answer(root, text="def double(x):\n    return 2 * x  # mine"):
    change(root / "my_work" / ONE, lambda cells, order: cells["double"].update(source=text))


@pytest.fixture
def mine(released):
    """The learner's copy, just made."""
    assert lab.prepare(released) == [f"my_work/{ONE}: new"]
    return released / "my_work" / ONE


def test_the_first_copy_is_the_release(released, mine):
    assert mine.read_bytes() == (released / "exercises" / ONE).read_bytes()
    assert lab.prepare(released) == ["my_work/ is up to date with the release."]


def test_work_is_left_alone_while_the_release_stays(released, mine):
    answer(released)
    before = mine.read_bytes()
    assert lab.prepare(released) == ["my_work/ is up to date with the release."]
    assert mine.read_bytes() == before


def test_an_untouched_copy_follows_a_newer_release_and_says_what_changed(released, mine):
    new_release(released)
    said = lab.prepare(released)
    assert "updated to the newer release" in said[0]
    assert [line.split() for line in said[1:]] == [
        ["changed", "title", "(text)"],
        ["changed", "triple-check", "(check,", "5", "points)"],
        ["new", "end", "(text)"],
        ["removed", "triple", "(your", "answer)"],
    ]
    assert mine.read_bytes() == (released / "exercises" / ONE).read_bytes()


def test_running_cells_is_no_edit(released, mine):
    def run(cells, order):
        cells["imports"]["execution_count"] = 7
        cells["imports"]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "x"}]

    change(mine, run)
    new_release(released)
    assert "updated" in lab.prepare(released)[0]


def test_an_edited_copy_stays_and_the_release_is_placed_beside_it(released, mine):
    answer(released)
    change(
        mine,
        lambda cells, order: order.insert(
            3, {"cell_type": "markdown", "id": "note", "metadata": {}, "source": "My note."}
        ),
    )
    before = mine.read_bytes()
    new_release(released)
    said = "\n".join(lab.prepare(released))
    assert "exactly as you left it" in said and "2 of your cells" in said
    assert "changed  title (text)" in said
    assert mine.read_bytes() == before
    beside = sources(mine.with_name("sample_newer.ipynb"))
    assert beside["double"].endswith("# mine")
    assert beside["title"] == "# A sample, in better words"
    assert list(beside)[3] == "note" and "triple" not in beside


def test_both_halves_of_a_split_answer_go_along(released, mine):
    """JupyterLab copies the metadata, and with it the grade_id, to both halves."""

    def split(cells, order):
        half = copy.deepcopy(cells["double"]) | {"id": "half", "source": "y = 2  # second half"}
        cells["double"]["source"] = "x = 1  # first half"
        order.insert(order.index(cells["double"]) + 1, half)

    change(mine, split)
    new_release(released)
    assert "2 of your cells" in "\n".join(lab.prepare(released))
    beside = load(mine.with_name("sample_newer.ipynb"))["cells"]
    at = next(i for i, c in enumerate(beside) if c["id"] == "double")
    assert beside[at]["source"] == "x = 1  # first half"
    assert beside[at + 1]["source"] == "y = 2  # second half"
    named = [c["metadata"].get("nbgrader", {}).get("grade_id") for c in beside]
    assert named.count("double") == 1


def test_edits_that_are_not_carried_over_are_named(released, mine):
    def edit(cells, order):
        cells["title"]["source"] += "\n\nMy note."
        cells["imports"]["source"] += "\nimport math"
        cells["triple"]["source"] = "def triple(x): return 9"

    change(mine, edit)
    new_release(released)  # which removes triple
    assert "  only in sample.ipynb are your edits to: title, imports, triple" in lab.prepare(
        released
    )


def test_an_answer_whose_question_changed_is_pointed_to(released, mine):
    answer(released)
    change(
        released / "exercises" / ONE,
        lambda c, order: c["double"].update(source="def double(y):"),
    )
    said = "\n".join(lab.prepare(released))
    assert f"changed  double (your answer; as released: exercises/{ONE})" in said


def test_answers_to_a_removed_question_stay_in_the_learners_file(released, mine):
    change(mine, lambda cells, order: cells["triple"].update(source="def triple(x): return 9"))
    new_release(released)
    lab.prepare(released)
    assert "return 9" in sources(mine)["triple"]


def test_each_newer_release_gets_its_own_name(released, mine):
    answer(released)
    new_release(released)
    lab.prepare(released)
    first = mine.with_name("sample_newer.ipynb")
    first.write_text("the learner works here now")
    change(released / "exercises" / ONE, lambda c, order: c["title"].update(source="# Third"))
    lab.prepare(released)
    assert first.read_text() == "the learner works here now"
    assert sources(mine.with_name("sample_newer_2.ipynb"))["double"].endswith("# mine")
    assert lab.prepare(released) == ["my_work/ is up to date with the release."]


def test_a_deleted_copy_comes_back_fresh(released, mine):
    mine.unlink()
    assert lab.prepare(released) == [f"my_work/{ONE} was not there: a fresh copy"]
    assert mine.read_bytes() == (released / "exercises" / ONE).read_bytes()


def test_a_renamed_copy_stays_under_its_new_name(released, mine):
    answer(released)
    renamed = mine.rename(mine.with_name("my answers.ipynb"))
    before = renamed.read_bytes()
    assert "my answers.ipynb stays as it is" in lab.prepare(released)[0]
    assert renamed.read_bytes() == before and mine.is_file()


def test_a_read_only_copy_is_not_replaced(released, mine):
    mine.chmod(0o444)
    before = mine.read_bytes()
    new_release(released)
    lab.prepare(released)
    assert mine.read_bytes() == before
    assert mine.with_name("sample_newer.ipynb").is_file()


@pytest.mark.parametrize("text", ["", "{not json", "[]", '{"cells": 3}', '{"cells": [1]}'])
def test_a_corrupted_copy_is_kept_and_told(released, mine, text):
    mine.write_text(text)
    new_release(released)
    said = "\n".join(lab.prepare(released))
    assert "cannot be read as a notebook" in said
    assert mine.read_text() == text
    beside = mine.with_name("sample_newer.ipynb")
    assert beside.read_bytes() == (released / "exercises" / ONE).read_bytes()


def test_a_copy_of_unknown_origin_is_treated_as_work(released, mine):
    """The record of the release is gone: what differs from it must be the learner's."""
    answer(released)
    (released / "my_work" / ".release" / ONE).unlink()
    before = mine.read_bytes()
    assert "1 of your cells" in "\n".join(lab.prepare(released))
    assert mine.read_bytes() == before


def test_cells_without_ids_are_found_by_their_grade_id(released, mine):
    """Editors of older notebook formats drop the cells' ids."""
    answer(released)
    change(mine, lambda cells, order: [c.pop("id") for c in order])
    new_release(released)
    lab.prepare(released)
    assert sources(mine.with_name("sample_newer.ipynb"))["double"].endswith("# mine")


def test_data_files_go_along_and_edited_ones_stay(released, mine):
    data = released / "exercises" / "04_sample" / "data" / "words.txt"
    data.parent.mkdir()
    data.write_text("one")
    assert lab.prepare(released) == ["my_work/04_sample/data/words.txt: new"]
    copy = released / "my_work" / "04_sample" / "data" / "words.txt"
    copy.write_text("mine")
    data.write_text("two")
    lab.prepare(released)
    assert copy.read_text() == "mine"
    assert (copy.parent / "words_newer.txt").read_text() == "two"


def test_no_half_written_file_is_left_behind(released, mine):
    left = [p.name for p in (released / "my_work").rglob("*.part")]
    assert left == []


def test_my_work_as_a_file_is_one_clear_line(released):
    (released / "my_work").write_text("")
    with pytest.raises(CourseError, match="is a file: move it away"):
        lab.prepare(released)


def test_a_folder_in_the_way_is_one_clear_line(released):
    (released / "my_work" / "04_sample").mkdir(parents=True)
    (released / "my_work" / ".release").write_text("")
    with pytest.raises(CourseError, match="cannot use"):
        lab.prepare(released)


def test_a_folder_that_may_not_be_written_is_one_clear_line(released, mine, monkeypatch):
    def refuse(dir, **options):
        raise PermissionError(13, "Permission denied", str(dir))

    new_release(released)
    monkeypatch.setattr(lab.tempfile, "mkstemp", refuse)
    with pytest.raises(CourseError, match=r"cannot use .*Permission denied.*mend that"):
        lab.prepare(released)


def test_what_was_done_before_an_error_is_told(released, monkeypatch):
    """The next run has no reason to tell it again."""
    other = released / "exercises" / "05_other" / "other.ipynb"
    other.parent.mkdir()
    shutil.copy(released / "exercises" / ONE, other)
    lab.prepare(released)
    other.write_bytes(b"a newer one")
    mine = released / "my_work" / "05_other" / "other.ipynb"
    mine.write_text("mine")
    new_release(released)
    write = lab._write

    def full(path, content):
        if path.name == "other_newer.ipynb":
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(lab, "_write", full)
    with pytest.raises(CourseError) as error:
        lab.prepare(released)
    first, *done = str(error.value).splitlines()
    assert first.startswith("cannot use ") and done[0].startswith(f"my_work/{ONE}: upd")
    assert "05_other" not in "".join(done) and mine.read_text() == "mine"


@pytest.mark.parametrize("went_on", [False, True])
def test_a_copy_that_stays_behind_is_compared_with_its_own_release(released, mine, went_on):
    """Words of an older release are not the learner's, however many releases pass."""

    def words(number):
        def edit(cells, order):
            cells["title"]["source"] = f"# Release {number}"
            cells["double"]["source"] = f"def double(x):  # release {number}"
            cells["triple-check"]["source"] = f"# check {number}"

        change(released / "exercises" / ONE, edit)

    change(mine, lambda cells, order: cells["triple"].update(source="def triple(x): return 9"))
    words(2)
    lab.prepare(released)
    beside = mine.with_name("sample_newer.ipynb")
    if went_on:
        beside = beside.replace(mine).with_name("sample_newer.ipynb")
    else:
        beside = beside.with_name("sample_newer_2.ipynb")
    words(3)
    said = "\n".join(lab.prepare(released))
    assert "1 of your cells" in said and "only in" not in said
    assert sources(beside)["double"].endswith("release 3")
    assert sources(beside)["triple"].endswith("return 9")


def test_a_release_that_is_taken_back_changes_nothing(released, mine):
    first = (released / "exercises" / ONE).read_bytes()
    answer(released)
    new_release(released)
    lab.prepare(released)
    (released / "exercises" / ONE).write_bytes(first)
    assert lab.prepare(released) == ["my_work/ is up to date with the release."]
    assert not mine.with_name("sample_newer_2.ipynb").exists()


def test_without_a_release_there_is_nothing_to_copy(course):
    with pytest.raises(CourseError, match="no exercises"):
        lab.prepare(course)


def test_jupyterlab_starts_in_my_work_and_loads_nothing_from_elsewhere(released, monkeypatch):
    calls = []
    monkeypatch.setattr(lab.subprocess, "call", lambda *a, **k: calls.append((a, k)) or 0)
    assert lab.open_lab(released, ["--no-browser"]) == 0
    (command,), options = calls[0]
    assert command[:3] == [sys.executable, "-m", "jupyterlab"] and command[-1] == "--no-browser"
    assert options["cwd"] == released / "my_work"
    assert "--LabApp.news_url=None" in command
    first = options["env"]["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0]
    page = json.loads((Path(first) / "labconfig" / "page_config.json").read_text())
    assert page == {"disabledExtensions": {lab.NEWS: True}}


def test_jupyterlab_opens_where_nothing_can_be_written(released, monkeypatch):
    def refuse(path, content):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(lab, "_write", refuse)
    monkeypatch.setattr(lab.subprocess, "call", lambda *a, **k: 0)
    assert lab.open_lab(released, []) == 0
