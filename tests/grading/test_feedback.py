"""Feedback shows work, scores and messages, and nothing that tells of a hidden test."""

import base64
import html
import json
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from llmcourse.grading.feedback import (
    SAID,
    WITHHELD,
    FeedbackExporter,
    HarmlessLinks,
    HideHidden,
)

SECRET = "hidden_input = checks.rng('sample', 'double').normal(5)"
SOURCE = f"""checks.check(double, 1.0, expected=2.0)
### BEGIN HIDDEN TESTS
with checks.hidden():
    {SECRET}
    checks.check(double, hidden_input, expected=lambda x: 2 * x)
### END HIDDEN TESTS"""


def error(ename, evalue, traceback=()):
    return new_output("error", ename=ename, evalue=evalue, traceback=list(traceback))


def printed(text):
    return new_output("stream", name="stdout", text=text)


def hide(*outputs, source=SOURCE, learner=()):
    """The graded cell and the learner's cell of a notebook as its learner may see them."""
    graded = new_code_cell(source, outputs=list(outputs))
    graded.metadata.nbgrader = {
        "grade": True, "solution": False, "locked": True, "grade_id": "double-check"
    }  # fmt: skip
    own = new_code_cell("double(1)", outputs=list(learner))
    nb, _ = HideHidden().preprocess(new_notebook(cells=[graded, own]), {})
    return nb.cells


def all_text(cell):
    return nbformat.writes(new_notebook(cells=[cell]))


def test_no_line_of_a_hidden_test_is_shown():
    cell, _ = hide()
    assert cell.source == "checks.check(double, 1.0, expected=2.0)"


def test_a_checks_message_is_shown_and_its_traceback_is_not():
    message = "hidden check of double: wrong value\nhint: the sign"
    cell, _ = hide(error("CheckFailed", message, ["Traceback", SECRET]))
    assert cell.outputs[0].traceback == [
        "hidden check of double: wrong value",
        "hint: the sign",
    ]
    assert "hidden_input" not in all_text(cell)


def test_what_a_learners_code_prints_or_raises_in_a_hidden_test_is_not_shown():
    cell, _ = hide(printed(SECRET), error("ValueError", f"seen: {SECRET}", [SECRET]))
    assert [o.output_type for o in cell.outputs] == ["error"]
    assert cell.outputs[0].traceback == ["ValueError: the check could not run to its end"]
    assert "hidden_input" not in all_text(cell)


def test_a_checks_message_with_a_line_of_a_hidden_test_is_withheld():
    """A visible check shows what the learner's function raised: it may have read `In`."""
    cell, _ = hide(error("CheckFailed", f"double: raised ValueError\n{[SOURCE]}"))
    assert cell.outputs[0].traceback == [WITHHELD]


def test_a_line_that_the_visible_part_holds_too_withholds_nothing():
    """A function with a long name stands alone on a line of its calls."""
    source = """checks.check(
    causal_self_attention,
    1.0,
    expected=2.0,
)
### BEGIN HIDDEN TESTS
checks.check(
    causal_self_attention,
    hidden_input_of_the_course,
    expected=2.0,
)
### END HIDDEN TESTS"""
    message = "hidden check of causal_self_attention (large scores): 84 of 84 entries NaN"
    cell, _ = hide(error("CheckFailed", message), source=source)
    assert cell.outputs[0].traceback == [message]
    cell, _ = hide(error("CheckFailed", f"{message} hidden_input_of_the_course"), source=source)
    assert cell.outputs[0].traceback == [WITHHELD]


def test_a_line_that_a_learner_wrote_is_still_withheld():
    own = new_markdown_cell(SECRET)
    graded, _ = hide()
    graded.source, graded.outputs = SOURCE, [error("CheckFailed", SECRET)]
    nb, _ = HideHidden().preprocess(new_notebook(cells=[graded, own]), {})
    assert nb.cells[0].outputs[0].traceback == [WITHHELD]


def test_a_missing_function_is_named_where_the_visible_part_calls_it():
    cell, _ = hide(error("NameError", "name 'double' is not defined"))
    assert "name 'double' is not defined" in cell.outputs[0].traceback[0]


def test_a_name_in_the_hidden_part_is_not():
    cell, _ = hide(error("NameError", "name 'hidden_input' is not defined"))
    assert "hidden_input" not in all_text(cell)


def test_a_timeout_is_said_in_words():
    cell, _ = hide(error("CellTimeoutError", ""))
    assert "took too long" in cell.outputs[0].traceback[0]


@pytest.mark.parametrize("broken", ["### END HIDDEN TESTS", "### BEGIN HIDDEN TESTS"])
def test_a_marker_without_its_partner_shows_too_little_rather_than_a_test(broken):
    cell, _ = hide(source=SOURCE.replace(broken, "### END HIDEN TESTS"))
    if "BEGIN" not in broken:
        assert "hidden_input" not in cell.source


TELLING = [
    SECRET,
    f"\x1b[31m{SECRET}\x1b[0m",
    repr([SOURCE]),
    json.dumps({"In": [SOURCE]}),
    html.escape(SECRET),
    "\n".join(SECRET),
    SECRET.replace("'", '"').replace(" ", "   "),
    base64.b64encode(SOURCE.encode()).decode(),
    f"1: {SECRET}  # mine",
]


@pytest.mark.parametrize("text", TELLING)
def test_a_learners_own_output_with_a_line_of_a_hidden_test_is_withheld(text):
    _, own = hide(learner=[printed(text)])
    assert own.outputs[0].text == WITHHELD


def test_the_value_of_a_learners_cell_is_withheld_too():
    shown = new_output("execute_result", data={"text/plain": repr(SOURCE)})
    _, own = hide(learner=[shown])
    assert "hidden_input" not in all_text(own)


def test_a_learners_other_output_stays():
    _, own = hide(learner=[printed("2.0\n")])
    assert own.outputs[0].text == "2.0\n"


def test_the_page_loads_nothing_from_elsewhere():
    nb = new_notebook(cells=[new_markdown_cell("$x^2$")])
    page, _ = FeedbackExporter(template_name="classic").from_notebook_node(nb)
    assert "x^2" in page
    loads = [w for w in ("src=", "href=", "url(", "from ") for q in ("", "'", '"')
             if f"{w}{q}http" in page or f"{w}{q}//" in page]  # fmt: skip
    assert loads == []


@pytest.mark.parametrize(
    "link",
    [
        "[a](javascript:alert(1))",
        "[a](JaVaScript:alert(1))",
        "[a](&#106;avascript:alert(1))",
        "[a](<java&#9;script:alert(1)>)",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "[a](vbscript:x)",
        "[a]: javascript:alert(1)\n\n[a]",
    ],
)
def test_a_link_in_markdown_runs_nothing(link):
    cell = new_markdown_cell(f"before {link}\n\nafter")
    nb, _ = HarmlessLinks().preprocess(new_notebook(cells=[cell]), {})
    page, _ = FeedbackExporter().from_notebook_node(nb)
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    runs = [
        x for x in links if re.match(r"\s*(javascript|vbscript|data):", html.unescape(x), re.I)
    ]
    assert not runs and "after" in page


def test_other_links_and_images_stay():
    text = "[a](https://example.org) ![b](data:image/png;base64,AAAA) the data: 1"
    nb, _ = HarmlessLinks().preprocess(new_notebook(cells=[new_markdown_cell(text)]), {})
    assert "https://example.org" in nb.cells[0].source
    assert "data:image/png" in nb.cells[0].source


@pytest.mark.parametrize("name", ["NotGraded", "Restored", "ProcessEnded"])
def test_a_check_that_did_not_run_says_why_in_our_words_alone(name):
    cell, _ = hide(error(name, f"a learner's words: {SECRET}", [SECRET]))
    said = "\n".join(cell.outputs[0].traceback)
    assert said == f"{name}: {SAID[name]}" and "hidden_input" not in all_text(cell)
