"""A submission is put back into the form of its release, whatever was done to it."""

import copy
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
import nbformat
from hypothesis import given, settings
from hypothesis import strategies as st
from nbgrader.utils import compute_checksum

from llmcourse.course import CourseError
from llmcourse.grading import grader, pipeline, restore, stock, zoo
from llmcourse.grading.grader import NotANotebook, read

SAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))
cell, function, notebook = (SAMPLE[n] for n in ("cell", "function", "notebook"))
GRADED = {"double-check", "triple-check"}
ORDER = ["imports", "double", "double-check", "triple", "triple-check"]


def source():
    return notebook([
        cell("markdown", "title", "# A sample"),
        cell("code", "imports", "import torch\n\nfrom llmcourse import checks"),
        *function("double", 2, "secret_of_double"),
        *function("triple", 3, "secret_of_triple"),
    ])  # fmt: skip


def template():
    return restore.Template(
        tuple(
            {
                "grade_id": c["id"], "cell_type": c["cell_type"], "source": c["source"],
                "locked": info["locked"], "grade": info["grade"], "solution": info["solution"],
                "task": False, "points": info.get("points"),
                "checksum": compute_checksum(nbformat.from_dict(c)),
            }
            for c in source()["cells"] if (info := zoo.grade_info(c))
        )
    )  # fmt: skip


def released():
    return zoo.released(source())


def restored(nb):
    """A notebook as a grader reads it, put back into form."""
    made = read(json.dumps(nb).encode())
    restore.restore(made, template())
    return made


def by_id(nb):
    return {c.metadata.nbgrader.grade_id: c for c in nb.cells if "nbgrader" in c.metadata}


def find(nb, name):
    return next(c for c in nb["cells"] if c["id"] == name)


def without(nb, *names):
    nb["cells"] = [c for c in nb["cells"] if c["id"] not in names]
    return nb


def noted(nb):
    return nb.metadata[restore.NOTES]


def assert_is_whole(nb):
    """Every cell of the release once; the course's own in their order, with their own text."""
    cells = by_id(nb)
    assert sorted(cells) == sorted(ORDER)
    assert sum("nbgrader" in c.metadata for c in nb.cells) == len(ORDER)
    locked = [i for i in ORDER if i not in ("double", "triple")]
    assert [i for i in cells if i in locked] == locked
    for known in template().cells:
        made = cells[known["grade_id"]]
        info = made.metadata.nbgrader
        assert made.cell_type == known["cell_type"]
        assert (info.locked, info.grade, info.solution) == (
            known["locked"], known["grade"], known["solution"])  # fmt: skip
        assert info.get("points") == known["points"]
        if known["locked"]:
            assert made.source == known["source"]
    nbformat.validate(nb)


def test_what_was_released_comes_back_with_its_hidden_tests_and_no_note():
    nb = restored(released())
    assert_is_whole(nb)
    assert noted(nb) == {"missing": [], "moved": [], "without score": []}
    assert restore.notes(nb) == []
    assert "hidden_input_double" in by_id(nb)["double-check"].source


def test_an_answer_is_left_as_it_is():
    nb = released()
    find(nb, "double")["source"] = "def double(x): return 2 * x"
    assert by_id(restored(nb))["double"].source == "def double(x): return 2 * x"


def test_a_missing_check_is_put_back_without_score_behind_its_answer():
    nb = restored(without(released(), "double-check"))
    assert_is_whole(nb)
    assert list(by_id(nb)) == ORDER
    assert noted(nb)["without score"] == ["double-check"]
    assert restore.notes(nb) == ["double-check was missing and put back"]


def test_a_missing_answer_is_put_back_as_the_stub_and_its_check_still_counts():
    nb = restored(without(released(), "triple"))
    assert list(by_id(nb)) == ORDER
    assert noted(nb) == {"missing": ["triple"], "moved": [], "without score": []}


def test_a_moved_check_is_put_back_without_score():
    nb = released()
    nb["cells"].append(nb["cells"].pop(3))
    assert nb["cells"][-1]["id"] == "double-check"
    nb = restored(nb)
    assert list(by_id(nb)) == ORDER
    assert noted(nb) == {
        "missing": [], "moved": ["double-check"], "without score": ["double-check"]
    }  # fmt: skip


def test_a_moved_answer_stays_where_the_learner_has_it():
    nb = released()
    nb["cells"].insert(2, nb["cells"].pop(4))
    nb = restored(nb)
    assert list(by_id(nb)) == ["imports", "triple", "double", "double-check", "triple-check"]
    assert noted(nb)["without score"] == []


def test_of_a_pasted_check_the_copy_in_its_place_counts():
    for at in (0, 2, 4, 6):
        nb = released()
        nb["cells"].insert(at, find(nb, "double-check") | {"id": "pasted"})
        made = restored(nb)
        assert_is_whole(made)
        assert list(by_id(made)) == ORDER and noted(made)["without score"] == [], at
        assert len(made.cells) == len(nb["cells"])


def test_a_pasted_answer_is_the_learners_own_code():
    nb = released()
    copied = find(nb, "double") | {"id": "pasted", "source": "mine = 1"}
    nb["cells"].insert(3, copied)
    made = restored(nb)
    assert_is_whole(made)
    assert by_id(made)["double"].source != "mine = 1"
    assert any(c.source == "mine = 1" for c in made.cells)


def test_a_missing_check_stays_in_order_when_its_answer_is_at_the_end():
    nb = without(released(), "double-check")
    nb["cells"].append(nb["cells"].pop(2))
    assert nb["cells"][-1]["id"] == "double"
    assert_is_whole(restored(nb))


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize(
    "change",
    [
        {"locked": False}, {"grade": False}, {"grade": True, "points": 100}, {"points": 100},
        {"points": -1}, {"solution": True}, {"solution": False}, {"task": True},
        {"schema_version": 1}, {"checksum": "0" * 32}, {"cell_type": "markdown"}, {"more": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_metadata_is_the_releases_again(name, change):
    nb = released()
    find(nb, name)["metadata"]["nbgrader"] |= change
    assert_is_whole(restored(nb))


@pytest.mark.parametrize("info", [None, 3, "x", [], {}, {"grade_id": ["double-check"]}])
def test_a_check_with_broken_metadata_is_a_missing_one(info):
    nb = released()
    find(nb, "double-check")["metadata"]["nbgrader"] = info
    made = restored(nb)
    assert_is_whole(made)
    assert noted(made)["missing"] == ["double-check"]


def test_a_renamed_check_is_a_missing_one_and_the_learners_own_code():
    nb = released()
    find(nb, "double-check")["metadata"]["nbgrader"]["grade_id"] = "easy-check"
    made = restored(nb)
    assert_is_whole(made)
    assert noted(made)["without score"] == ["double-check"]


def test_a_check_that_takes_anothers_name_does_not_take_its_points():
    nb = released()
    find(nb, "triple-check")["metadata"]["nbgrader"]["grade_id"] = "double-check"
    made = restored(nb)
    assert_is_whole(made)
    assert noted(made)["without score"] == ["triple-check"]
    assert "hidden_input_triple" in by_id(made)["triple-check"].source


def test_a_changed_check_has_its_own_text_again():
    nb = released()
    find(nb, "double-check")["source"] = "print('all is well')"
    made = restored(nb)
    assert_is_whole(made)
    assert noted(made)["without score"] == []


@pytest.mark.parametrize("kind", ["markdown", "raw"])
@pytest.mark.parametrize("name", ["double", "double-check"])
def test_a_retyped_cell_is_code_again(kind, name):
    nb = released()
    old = find(nb, name)
    for key in ("outputs", "execution_count"):
        del old[key]
    old |= {"cell_type": kind, "attachments": {"a.png": {"image/png": "AAAA"}}}
    made = restored(nb)
    assert_is_whole(made)
    assert by_id(made)[name].outputs == [] and "attachments" not in by_id(made)[name]


def test_attachments_in_code_do_not_make_it_unreadable():
    nb = released()
    find(nb, "double")["attachments"] = {}
    assert_is_whole(restored(nb))


def test_what_a_learner_says_was_noted_is_not_believed():
    nb = without(released(), "double-check")
    nb["metadata"][restore.NOTES] = {"missing": [], "moved": [], "without score": []}
    assert noted(restored(nb))["without score"] == ["double-check"]


def test_an_empty_notebook_is_the_release_without_any_score():
    nb = released()
    nb["cells"] = []
    made = restored(nb)
    assert list(by_id(made)) == ORDER
    assert set(noted(made)["without score"]) == GRADED


def test_another_kernel_and_language_do_not_matter(monkeypatch):
    nb = released()
    nb["metadata"] = {"kernelspec": {"name": "ir", "display_name": "R", "language": "R"},
                      "language_info": {"name": "R"}}  # fmt: skip
    assert_is_whole(restored(nb))


def test_a_notebook_of_version_3_is_read():
    old = nbformat.convert(nbformat.from_dict(released()), 3)
    made = read(nbformat.writes(old, version=3).encode())
    restore.restore(made, template())
    assert_is_whole(made)


def test_older_and_sloppy_forms_are_read():
    nb = released()
    nb["nbformat_minor"] = 2
    for one in nb["cells"]:
        del one["id"]
        one["source"] = one["source"].splitlines(keepends=True)
    del nb["cells"][0]["metadata"]
    made = restored(nb)
    assert_is_whole(made)
    assert len({c.id for c in made.cells}) == len(made.cells)


@pytest.mark.parametrize("odd", ["<b>0 ü", "", 0, "x" * 65, "tools"])
def test_ids_that_no_notebook_may_have_are_no_reason_to_refuse_it(odd):
    nb = released()
    for cell in nb["cells"][:2]:
        cell["id"] = odd
    made = restored(nb)
    assert_is_whole(made)
    assert len({c.id for c in made.cells}) == len(made.cells)


def test_a_byte_order_mark_is_no_reason_either():
    made = read(b"\xef\xbb\xbf" + json.dumps(released()).encode())
    restore.restore(made, template())
    assert_is_whole(made)


def test_halves_of_characters_are_replaced_so_that_any_file_can_hold_them():
    nb = released()
    find(nb, "double")["source"] = "# \ud83d alone, \ud83d\ude00 together"
    text = nbformat.writes(restored(nb))
    assert "# ? alone" in text and text.encode("utf-8")
    nb["cells"][0]["source"] = "\U0001f600"
    assert "\U0001f600" in nbformat.writes(restored(nb))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{}", "not text in UTF-8"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no notebook"),
        (b'{"nbformat": "4"}', "no notebook"),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "damaged"),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}', "damaged"),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [1]}', "damaged"),
        (b'{"nbformat": 99, "nbformat_minor": 5, "metadata": {}, "cells": []}', "damaged"),
    ],
)
def test_what_is_no_notebook_says_why(raw, why):
    with pytest.raises(NotANotebook, match=why):
        read(raw)


def values(number):
    """A notebook with so many empty objects in its metadata."""
    nb = json.dumps(released() | {"metadata": {"x": "HERE"}})
    return nb.replace('"HERE"', f"[{','.join(['{}'] * number)}]").encode()


@pytest.mark.parametrize("number", [grader.MOST_VALUES, 2 * grader.MOST_VALUES])
def test_a_file_of_too_many_values_is_refused_before_they_are_objects(number, monkeypatch):
    monkeypatch.setattr(grader.json, "loads", lambda _: pytest.fail("it was read"))
    with pytest.raises(NotANotebook, match=f"more than {grader.MOST_VALUES} values"):
        read(values(number))


@pytest.mark.parametrize(
    "raw",
    [b'{"' + b'\\"' * 10**6, b'{"x' + b"\\" * 10**6, b'"' * 10**6, b"{" * 10**6, b"1 " * 10**6],
)
def test_values_are_counted_in_one_go(raw):
    """Trying again from every quote would be 10**12 steps, and never end."""
    with pytest.raises(NotANotebook, match="not JSON"):
        read(raw)


def test_what_grading_does_not_need_never_becomes_an_object():
    """A file of 1 MB took 500 MB; what is left has the release's form."""
    junk = [{}] * 10_000
    nb = released()
    find(nb, "double")["source"] = "mine"
    for one in nb["cells"]:
        one["metadata"]["x"] = one["y"] = junk
        one["attachments"] = {str(i): {} for i in range(1000)}
        one.update({"outputs": junk} if one["cell_type"] == "code" else {})
    made = read(json.dumps(nb | {"metadata": {"x": junk}, "z": junk}).encode())
    assert len(json.dumps(made)) < 30_000
    restore.restore(made, template())
    assert_is_whole(made)
    assert by_id(made)["double"].source == "mine"


def test_a_large_notebook_of_an_honest_learner_is_read():
    """Three thousand cells of twenty lines, with what they printed, and 2 MB of pictures."""
    nb = released()
    image = {"image/png": "A" * 2**20}
    printed = {"output_type": "stream", "name": "stdout", "text": ["a line\n"] * 20}
    drawn = {"output_type": "display_data", "metadata": {}, "data": image}
    for i in range(3000):
        own = cell("code", f"own-{i}", "") | {"metadata": {"collapsed": False, "tags": ["a"]}}
        nb["cells"].append(own | {"source": ["x = [1, 2]\n"] * 20, "outputs": [printed]})
    nb["cells"][-1]["outputs"] = [drawn]
    text = cell("markdown", "seen", "![x](attachment:x.png)") | {
        "attachments": {"x.png": image}
    }
    nb["cells"].append(text)
    made = read(json.dumps(nb, indent=1).encode())
    assert len(made.cells) == len(nb["cells"]) and made.cells[-1].attachments["x.png"] == image
    assert made.cells[-2].source == "x = [1, 2]\n" * 20


def test_more_cells_than_anybody_writes_are_refused():
    nb = released()
    nb["cells"] += [cell("markdown", "own", "")] * grader.MOST_CELLS
    with pytest.raises(NotANotebook, match=f"at most {grader.MOST_CELLS} are graded"):
        read(json.dumps(nb).encode())


def test_a_cell_put_back_into_an_old_notebook_is_valid_there():
    nb = without(released(), "double-check")
    nb["nbformat_minor"] = 4
    for one in nb["cells"]:
        del one["id"]
    made = nbformat.from_dict(nb)
    restore.restore(made, template())
    assert_is_whole(made)


def test_a_hundred_thousand_copies_are_sorted_out_in_one_go():
    """Comparing each with each would be 10**10 steps, and never end."""
    names = [i % 5 for i in range(100_000)]
    assert [names[i] for i in restore._rising(names)] == [0, 1, 2, 3, 4]


def longest_rising(numbers):
    """Of all subsequences, the length of the longest rising one: the definition."""
    best = 0
    for mask in range(2 ** len(numbers)):
        part = [n for i, n in enumerate(numbers) if mask >> i & 1]
        if part == sorted(set(part)):
            best = max(best, len(part))
    return best


@given(st.lists(st.integers(0, 5), max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_rising_part_is_rising_and_longest(numbers):
    at = restore._rising(numbers)
    part = [numbers[i] for i in at]
    assert at == sorted(set(at)) and part == sorted(set(part))
    assert len(part) == longest_rising(numbers)


@st.composite
def mangled(draw):
    """A release in another order, with copies, without some cells and with others."""
    names = st.sampled_from(["title", *ORDER, "own"])
    nb = released()
    cells = {c["id"]: c for c in nb["cells"]} | {"own": cell("markdown", "own", "mine")}
    order = draw(st.lists(names, max_size=12))
    nb["cells"] = [cells[n] | {"id": f"{n}-{i}"} for i, n in enumerate(order)]
    return nb


@given(mangled())
@settings(max_examples=80, deadline=None)
def test_whatever_was_done_the_release_is_whole_again(nb):
    made = restored(nb)
    assert_is_whole(made)
    again = copy.deepcopy(made)
    restore.restore(again, template())
    assert [(c.source, c.metadata) for c in again.cells] == [
        (c.source, c.metadata) for c in made.cells
    ]
    assert noted(again)["missing"] == noted(again)["moved"] == []
    handed = {c["metadata"].get("nbgrader", {}).get("grade_id") for c in nb["cells"]}
    assert set(noted(made)["missing"]) == set(ORDER) - handed


def test_the_gradebook_knows_the_release_in_its_order(released):
    """What nbgrader stored, in the order of the released file."""
    api = stock.api(released)
    stock.must(api.generate_assignment("04_sample"), "generating")
    with api.gradebook as book:
        path = released / "exercises" / "04_sample" / "sample.ipynb"
        found = pipeline.template(book, "04_sample", "sample", path)
        assert found.ids == ORDER
        mine = {c["grade_id"]: c for c in template().cells}
        for known in found.cells:
            assert known["points"] == mine[known["grade_id"]]["points"]
            assert known["locked"] == mine[known["grade_id"]]["locked"]
    assert json.loads(found.kernelspec)["name"] == "python3"


def test_a_damaged_gradebook_is_told(released):
    api = stock.api(released)
    stock.must(api.generate_assignment("04_sample"), "generating")
    with api.gradebook as book:
        book.find_source_cell("imports", "sample", "04_sample").source += "\n"
        book.db.commit()
        with pytest.raises(CourseError, match="the gradebook's copy of imports is damaged"):
            pipeline.template(book, "04_sample", "sample", released / "none.ipynb")


def test_a_grader_starts_without_what_only_the_coordinator_needs():
    """Importing nbgrader takes as long as importing torch."""
    needed = "import sys; from llmcourse.grading import execute, grader, restore"
    program = f"{needed}; sys.exit('nbgrader' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_nbgraders_own_pipeline_restores_the_same(released):
    api = stock.api(released)
    stock.must(api.generate_assignment("04_sample"), "generating")
    with api.gradebook as book:
        nb = nbformat.from_dict(without(source(), "double-check"))
        where = {"assignment": "04_sample", "notebook": "sample", "student": "ada",
                 "db_url": book.db.get_bind().url.render_as_string(False)}  # fmt: skip
    step = pipeline.Restore(parent=api)
    made, _ = step.preprocess(nb, {"nbgrader": where})
    assert list(by_id(made)) == ORDER
    assert noted(made)["without score"] == ["double-check"]


def test_a_job_that_is_no_notebook_ends_with_its_reason_and_needs_no_sandbox():
    job = grader.Job("ada/x/y", b"{", template().cells, None, {}, "salt")
    outcome = grader.grade(job)
    assert outcome.why.startswith("the file is not JSON") and not outcome.broken
