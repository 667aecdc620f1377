"""Feedback shows work, scores and messages, and nothing that tells of a hidden test."""

import base64
import html
import json
import re
import shutil
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbconvert.filters.markdown_mistune import MarkdownWithMath
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

from llmcourse.grading.feedback import SAID, WITHHELD, HideHidden, NoEmptyComments
from llmcourse.grading.harmless import LONGEST, HarmlessOutputs, Renderer

ROOT = Path(__file__).parents[2]

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


def test_a_line_that_a_learner_typed_withholds_nothing():
    """They know it; and that it vanished would tell them where else it stands."""
    graded, _ = hide()
    graded.source, graded.outputs = SOURCE, [error("CheckFailed", f"in your line  {SECRET}")]
    own = new_code_cell(f"{SECRET}  # mine", outputs=[printed(f"----> 1 {SECRET}")])
    nb, _ = HideHidden().preprocess(new_notebook(cells=[graded, own]), {})
    assert nb.cells[0].outputs[0].traceback == [f"in your line  {SECRET}"]
    assert SECRET in nb.cells[1].outputs[0].text


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


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """What nbgrader makes feedback with, and formgrader its page, by the course's settings."""
    from nbgrader.converters import GenerateFeedback
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.server_extensions.formgrader.formgrader import FormgradeExtension

    from llmcourse.grading import stock

    course = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", course)
    (course / ".course_secret").write_text("a sample\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(course)
        patch.setenv("LLMCOURSE_SALT", "sample")
        settings = stock.settings(course)
        maker = GenerateFeedback(coursedir=CourseDirectory(config=settings), config=settings)
        feedback = maker.exporter_class(parent=maker, config=maker.config)
        for step in maker.preprocessors[1:]:  # but GetGrades: there is no gradebook
            feedback.register_preprocessor(step)
        formgrader, web = FormgradeExtension(), SimpleNamespace(settings={})
        formgrader.root_dir = str(course)
        formgrader.initialize([])
        formgrader.init_tornado_settings(web)
    return {"feedback": feedback, "formgrader": web.settings["nbgrader_exporter"]}


TOLD = {
    "index": 0, "total": 1, "base_url": "", "notebook_id": "sample",
    "nbgrader": {"notebook": "sample", "score": 1.0, "max_score": 2.0, "late_penalty": 0},
}  # fmt: skip


def make(exporter, *cells):
    return exporter.from_notebook_node(new_notebook(cells=list(cells)), dict(TOLD))[0]


@pytest.fixture(params=["feedback", "formgrader"])
def page(request, pages):
    """Make the page of some cells."""
    return partial(make, pages[request.param])


@pytest.fixture
def feedback_page(pages):
    return partial(make, pages["feedback"])


class Live(HTMLParser):
    """Gathers what a browser would run, load or obey; addresses as it reads them."""

    URLS = ("href", "src", "action", "formaction", "data", "poster", "srcset", "xlink:href")
    INERT = re.compile(r"data:image/(png|jpeg|gif);base64,.*|(https?|mailto):.*")
    TAGS = ("script", "iframe", "object", "embed", "form", "input", "button", "base", "svg",
            "meta", "style", "link", "textarea")  # fmt: skip

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.found += [tag] if tag in self.TAGS else []
        self.found += [(tag, name) for name in values if name.startswith(("on", "data-"))]
        for name in set(self.URLS) & set(values):
            address = re.sub(r"[\t\n\r]", "", values[name] or "").strip(
                "".join(map(chr, range(33)))
            )
            scheme = re.match(r"[a-z][a-z0-9+.-]*:", address, re.I)
            outside = tag != "a" and address.startswith(
                ("//", "\\\\", "/\\", "http", "/", "..")
            )
            if outside or (scheme and not self.INERT.fullmatch(address)):
                self.found.append((tag, name, address))


def live(page):
    return sorted(map(str, Live(page).found))


HOSTILE = [
    "[a](javascript:alert(1))", r"[a](javascript\:alert(1))", r"[a](java\script:alert(1))",
    "[a](JaVaScRiPt:alert(1))", r"[a](JaVaScRiPt\:alert(1))", "[a](&#106;avascript:alert(1))",
    "[a](&amp;#106;avascript:alert(1))", "[a](<java&#9;script:alert(1)>)",
    "[a](java&Tab;script:alert(1))", "[a](javascript&colon;alert(1))",
    r"[a](java\&#115;cript\:alert(1))", "[a](&#1;javascript:alert(1))",
    "[a](data:text/html;base64,PHNjcmlwdD4=)", r"[a](data\:text/html,alert)",
    "[a](vbscript:x)", r"[a](vbscript\:x)", "[a](file:///etc/passwd)",
    "[a]: javascript:alert(1)\n\n[a]", "[a][r]\n\n[r]: javascript\\:alert(1)",
    r"<javascript\:alert(1)>", r"![a](javascript\:alert(1))",
    "[a](files/javascript:alert(1))", "[a](files/&#106;avascript&#58;alert(1))",
    "![a](https://elsewhere.example/a.png)", "![a](//elsewhere.example/a.png)",
    r"![a](/\\elsewhere.example/a.png)", "![a](../../../hub/logout)", "![a](/hub/logout)",
    "![a](data:image/svg+xml;base64,PHN2Zz4=)",
    "<a href='javascript:alert(1)'>a</a>", "<a href=' &#14; javascript:alert(1)'>a</a>",
    "<img src=x onerror=alert(1)>", "<svg onload=alert(1)></svg>", "<svg/onload=alert(1)>",
    "<script>alert(1)</script>", "<style>@import '//elsewhere.example'</style>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>", "<base href='//elsewhere.example'>",
    "<form action='//elsewhere.example'><input><button formaction='javascript:x'></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></table>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<p title='&quot;><img src=x onerror=alert(1)>'>", "<b a='<img src=x onerror=alert(1)>'>",
    "```mermaid\n<img src=x onerror=alert(1)>\n```", "```<img/src=x/onerror=alert(1)>\nx\n```",
    "# a\" onclick=\"alert(1)\n# <img src=x onerror=alert(1)>",
    "$\\unicode<img src=x onerror=alert(1)>$ $$<img src=x onerror=alert(1)>$$",
    "- [ ] a task", "<meta http-equiv=refresh content='0;url=//elsewhere.example'>",
]  # fmt: skip


def written(place, text):
    """A cell that shows `text` at some place, between two words."""
    said = f"before\n\n{text}\n\nafter"
    if place == "output":
        kinds = ("text/markdown", "text/html")
        return new_code_cell(
            "1", outputs=[new_output("display_data", {k: said}) for k in kinds]
        )
    if place == "raw":
        return new_raw_cell(said, metadata={"raw_mimetype": "text/html"})
    cell = new_markdown_cell("mine" if place == "comment" else said)
    if place == "comment":
        cell.metadata.nbgrader = {"solution": True, "grade_id": "it", "comment": said}
    return cell


@pytest.mark.parametrize("place", ["cell", "output", "comment", "raw"])
def test_nothing_that_a_learner_writes_runs_or_loads(place, page):
    shown = page(*[written(place, text) for text in HOSTILE])
    assert live(shown) == live(page(*[written(place, "") for _ in HOSTILE]))
    # formgrader shows a comment by its script; nbconvert no raw cell of a format not its own
    assert shown.count("after") == page(*[written(place, "x") for _ in HOSTILE]).count("after")


OUTPUTS = [
    ({"image/png": "AAAA"}, {"image/png": {"width": "1 onerror=alert(1)"}}),
    ({"image/jpeg": "AAAA"}, {"image/jpeg": {"height": "1 onerror=alert(1)"}}),
    ({"image/png": 'AA" onerror="alert(1)'}, {}),
    ({"image/png": "AAAA"}, {"filenames": {"image/png": "//elsewhere.example/a.png"}}),
    ({"text/html": "<b>a</b>"}, {"text/html": {"isolated": True}}),
    ({"text/latex": "$x$ <img src=x onerror=alert(1)>"}, {}),
    ({"text/plain": "<img src=x onerror=alert(1)>"}, {}),
    ({"image/svg+xml": "<svg onload=alert(1)></svg>"}, {}),
    ({"application/javascript": "alert(1)"}, {}),
    ({"application/vnd.jupyter.widget-view+json": {"model_id": "a"}}, {}),
    ({"text/vnd.mermaid": "<img src=x onerror=alert(1)>"}, {}),
]


def test_no_output_runs_or_loads(page):
    told = [new_output("display_data", data, metadata=wishes) for data, wishes in OUTPUTS]
    plain = new_output("display_data", {"text/plain": ""})
    shown = page(new_code_cell("1", outputs=told))
    assert live(shown) == live(page(new_code_cell("1", outputs=[plain])))


def test_a_picture_keeps_its_size_and_what_cannot_be_shown_is_named():
    picture = new_output(
        "display_data", {"image/png": "AAAA"}, metadata={"image/png": {"width": 80, "a": 1}}
    )
    script = new_output("display_data", {"application/javascript": "alert(1)"})
    cell = new_code_cell("1", outputs=[picture, script])
    HarmlessOutputs().preprocess(new_notebook(cells=[cell]), {})
    assert cell.outputs[0].metadata == {"image/png": {"width": 80}}
    assert cell.outputs[1].data == {"text/plain": "(not shown: application/javascript)"}


def test_nothing_poses_as_a_part_of_formgraders_page(pages):
    """Its script finds scores by id, and buttons by class."""
    text = "# it\n\n<p class='full-credit' id='it'>a</p>\n<a name='it' style='position: fixed'>"
    shown = make(pages["formgrader"], new_markdown_cell(text))
    body = shown[shown.index("<body") :]
    assert [w for w in ("full-credit", 'id="it"', 'name="it"', "position") if w in body] == []


def test_markdown_is_markdown(page):
    """Sanitised before it was rendered, a quote was `&gt;` and a table one paragraph."""
    text = (
        "> **Deliver** two:\n>\n> | what | points |\n> | --- | ---: |\n> | `f(x)` | 1 |\n\n"
        "1 < 2 & 3 > 2 ~~no~~\n\n```python\nif a < b and c:\n    pass\n```\n\n"
        "![b](data:image/png;base64,AAAA) [a](https://example.org/?a=1&b=2) [c](#d) <a@b.org>"
    )
    shown = page(new_markdown_cell(text))
    for part in (
        "<blockquote>", "<table>", '<td style="text-align:right;">1</td>', "<code>f(x)</code>",
        "1 &lt; 2 &amp; 3 &gt; 2 <del>no</del>", '<span class="k">if</span>', 'href="#d"',
        'href="https://example.org/?a=1&amp;b=2"', 'src="data:image/png;base64,AAAA"',
        'href="mailto:a@b.org"',
    ):  # fmt: skip
        assert part in shown, part
    assert "&amp;gt;" not in shown and "&amp;amp;" not in shown and "&amp;lt;" not in shown


def test_formulas_are_shown_without_a_script(page):
    text = (
        r"$\sqrt{K}$ $$\phi(x) = \begin{cases} x + 1 & x > 0 \\ e^x & x \le 0. \end{cases}$$ $5"
    )
    shown = page(new_markdown_cell(text))
    assert "<msqrt>" in shown and "<mi>K</mi>" in shown and "$5" in shown
    assert shown.count("<mtr>") == 2 and shown.count("<mtd") == 4 and "cases" not in shown


@pytest.mark.parametrize(
    "tex",
    [
        r"\href{javascript:alert(1)}{x}", r"\unknown", "{" * 3000, "{" * 500, "x_", "a_b_c",
        r"\begin{cases} x", r"\left( x", r"\text{<b>}", r"\style{color:red}{x}",
        r"\class{full-credit}{x}", r"\text{a < b}",
    ],
)  # fmt: skip
def test_a_formula_that_is_not_known_stays_as_it_was_typed(tex, page):
    assert html.escape(f"${tex}$", quote=False) in page(new_markdown_cell(f"${tex}$"))


def test_every_formula_of_an_exercise_is_known():
    cells = [
        cell
        for path in (ROOT / "exercises").glob("*/*.ipynb")
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == "markdown"
    ]
    left = {}
    for cell in cells:
        text = MarkdownWithMath(Renderer({})).render("".join(cell["source"]))
        left |= {cell["id"]: text} if "$" in text else {}
    assert len(cells) > 40 and left == {}


def test_attached_pictures_are_shown_and_a_missing_one_costs_no_page(page):
    big = base64.b64encode(bytes(3 * LONGEST)).decode()
    cell = new_markdown_cell("![a](attachment:a.png) ![b](attachment:b.svg)\n\nafter")
    cell.attachments = {"a.png": {"image/png": big}, "b.svg": {"image/svg+xml": "PHN2Zz4="}}
    assert "![a](attachment:a.png)" in page(cell)
    cell.source = "**a** ![a](attachment:a.png)"
    shown = page(cell)
    assert f'src="data:image/png;base64,{big}"' in shown and "<strong>a</strong>" in shown


@pytest.mark.parametrize(
    "text", ["&#" + "1" * 5000 + ";", "&#x" + "f" * 5000, "<b>" * 2000, "> " * 2000, "\0"]
)
def test_no_text_costs_a_learner_their_feedback(text, page):
    shown = new_output("display_data", {"text/html": text})
    cells = [new_markdown_cell(text), new_code_cell("1", outputs=[shown, printed(text)])]
    graded = new_code_cell(SOURCE, outputs=[error("CheckFailed", text)])
    graded.metadata.nbgrader = {"grade": True, "solution": False, "locked": True}
    nb, _ = HideHidden().preprocess(new_notebook(cells=[*cells, graded]), {})
    assert "The end." in page(*nb.cells[:2], new_markdown_cell("The end."))


def test_what_is_too_long_is_shown_as_it_was_typed(page):
    text = "<div>" * (LONGEST // 5 + 1)
    assert html.escape(text) in page(new_markdown_cell(text))
    many = [new_markdown_cell("**a** " + "b " * (LONGEST // 2 - 3)) for _ in range(18)]
    shown = page(*many)
    assert 10 < shown.count("<strong>a</strong>") < 18 and shown.count("<pre>**a**") >= 1


HANGS = """
import nbformat.v4 as v4
from llmcourse.grading import leaks, unpack
from llmcourse.grading.feedback import HideHidden

n = 100_000
texts = [f(n) for f in (
    lambda n: "A" * 40 + "\\n" * n + "!", lambda n: "A" * 40 + " \\n" * n + "!",
    lambda n: ("A" * 40 + "\\n") * (n // 40) + "!", lambda n: "A" * n, lambda n: "=" * n,
    lambda n: "# " * n + '"', lambda n: "#\\t" * n + "'", lambda n: " " * n + "x",
    lambda n: "1" * n + "x", lambda n: "1 " * n, lambda n: ">" * n, lambda n: "|#" * n + "x",
    lambda n: "BEGIN SOLUTION\\n" * n, lambda n: "x" * n + " END", lambda n: "BEGIN " * n,
    lambda n: "BEGIN SOLUTION" * n, lambda n: "<a" * n, lambda n: "<" * n, lambda n: "&" * n,
    lambda n: "&#1" * n, lambda n: "\\x1b[" + "0;" * n, lambda n: "\\x1b[" * n,
    lambda n: "%" * n, lambda n: "\\\\" * n, lambda n: "," * n, lambda n: "\\r\\n" * n,
)]
for text in texts:
    hidden = "### BEGIN HIDDEN TESTS\\nhidden_input = 12345\\n### END HIDDEN TESTS"
    test = v4.new_code_cell(hidden)
    test.metadata.nbgrader = {"grade": True, "solution": False, "locked": True}
    test.outputs = [v4.new_output("error", ename="CheckFailed", evalue=text, traceback=[])]
    answer = v4.new_markdown_cell(text)
    answer.metadata.nbgrader = {"grade": True, "solution": True, "locked": False}
    own = v4.new_code_cell("1", outputs=[v4.new_output("stream", name="stdout", text=text)])
    HideHidden().preprocess(v4.new_notebook(cells=[test, answer, own]), {})
print(len(texts))
"""


def test_no_text_makes_feedback_hang():
    """In time linear in its length each takes a fraction of a second, in quadratic minutes."""
    ran = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert ran.stdout.strip() == "26", ran.stderr[-2000:]


def graded(**info):
    cell = new_code_cell("double(1)")
    cell.metadata.nbgrader = {"grade_id": "double", "solution": True, "grade": False} | info
    return cell


@pytest.mark.parametrize("comment", [None, "", " ", "No response."])
def test_an_empty_comment_is_left_out(comment, feedback_page):
    page = feedback_page(graded(comment=comment))
    body = page[page.index("<body") :]
    assert "Comment" not in body and "No response" not in body


def test_a_comment_is_shown_and_named_in_the_contents(feedback_page):
    page = feedback_page(graded(comment="Well *done*."))
    assert '<a href="#comment-double">Comment on double</a>' in page
    assert "Well <em>done</em>." in page


def test_a_notebook_of_another_course_has_no_comments_to_leave_out():
    nb, _ = NoEmptyComments().preprocess(new_notebook(cells=[new_code_cell("1")]), {})
    assert nb.cells[0].metadata == {}


def test_the_page_runs_and_loads_nothing(feedback_page):
    page = feedback_page(new_markdown_cell("$x^2$"))
    loads = [w for w in ("src=", "href=", "url(", "from ") for q in ("", "'", '"')
             if f"{w}{q}http" in page or f"{w}{q}//" in page]  # fmt: skip
    assert loads == [] and "<script" not in page and "<link" not in page
    policy = re.search(r'Content-Security-Policy"?[^>]*', page)
    assert page.index("<head>") < policy.start() < page.index("<style")


def test_the_page_asks_for_no_font_and_a_learners_text_about_one_stays(feedback_page):
    """Its own policy blocks them all, and each is an error in the browser's console."""
    text = "@font-face { src: url(a.woff) }"
    page = feedback_page(new_code_cell("1", outputs=[printed(text)]))
    head, body = page.split("<body", 1)
    assert "@font-face" not in head and "url(" not in head and ".glyphicon" in head
    assert text in body


@pytest.mark.parametrize("width", [390, 1200])
def test_scores_stay_in_their_bars_and_code_is_as_wide_as_these(width, feedback_page, browser):
    table = "| a | b | c |\n| --- | --- | --- |\n" + "| long_name_of_a_function(x) " * 3 + "|"
    table += "\n\n$$" + " + ".join("abcdefghijklmn") + "$$"
    cell = new_code_cell(
        "checks.check(a_function_with_a_long_name, 1.0, expected=2.0)  # " + "x" * 80
    )
    cell.metadata.nbgrader = {
        "grade_id": "a_function_with_a_long_name-check", "grade": True, "solution": False,
        "score": 1.0, "points": 3.0,
    }  # fmt: skip
    view = browser.new_page(viewport={"width": width, "height": 900})
    view.set_content(feedback_page(new_markdown_cell(table), cell))
    box = {
        name: view.locator(name).first.bounding_box()
        for name in (
            ".panel-primary .panel-heading",
            ".panel-primary .pull-right",
            ".highlight",
        )
    }
    bar, score, code = box.values()
    assert score["y"] + score["height"] <= bar["y"] + bar["height"]
    assert code["width"] > 0.9 * bar["width"] > 0.7 * width
    assert view.evaluate("document.documentElement.scrollWidth") == width
    view.close()


@pytest.mark.parametrize("name", ["NotGraded", "Restored", "ProcessEnded"])
def test_a_check_that_did_not_run_says_why_in_our_words_alone(name):
    cell, _ = hide(error(name, f"a learner's words: {SECRET}", [SECRET]))
    said = "\n".join(cell.outputs[0].traceback)
    assert said == f"{name}: {SAID[name]}" and "hidden_input" not in all_text(cell)
