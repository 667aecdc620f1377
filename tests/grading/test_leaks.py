"""The leak guard finds every kind of planted leak, and nothing where there is none."""

import base64
import gzip
import html
import json
import textwrap
import urllib.parse
import zipfile
import zlib

import pytest
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from llmcourse.grading import leaks, unpack

ANSWER = "    secret_of_double = x * 2\n    return secret_of_double.clone()"
TEST = "    checks.check(double, hidden_input_double, expected=lambda x: 2 * x)"
PAIR = '    hidden_input_double = checks.rng("sample", "double").normal(5)'


def edit(course, change, name="exercises"):
    path = course / name / "04_sample" / "sample.ipynb"
    book = json.loads(path.read_text())
    change({c["id"]: c for c in book["cells"]}, book)
    path.write_text(json.dumps(book, indent=1, sort_keys=True) + "\n")


def whats(found):
    return " ".join(leak.what for leak in found)


def test_a_clean_release_has_no_leak(released):
    assert leaks.check(released) == []


def put_in_text(cells, book):
    cells["title"]["source"] = f"A hint:\n```python\n{ANSWER}\n```"


def put_in_code(cells, book):
    cells["double"]["source"] += "\n" + ANSWER


def put_in_metadata(cells, book):
    book["metadata"]["draft"] = {"old": [ANSWER]}


def put_in_attachment(cells, book):
    cells["title"]["attachments"] = {"a.txt": {"text/plain": ANSWER}}


def put_in_output(cells, book):
    cells["imports"]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ANSWER}]


def put_reindented(cells, book):
    cells["title"]["source"] = textwrap.dedent(ANSWER).replace("\n", "\n\t  \n")


def put_on_one_line(cells, book):
    cells["title"]["source"] = " ".join(ANSWER.split())


PLANTS = [put_in_text, put_in_code, put_in_metadata, put_in_attachment, put_in_output,
          put_reindented, put_on_one_line]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.__name__)
def test_a_solution_anywhere_in_a_release_is_found(released, plant):
    edit(released, plant)
    assert "solution in 04_sample, cell double" in whats(leaks.check(released))


def test_a_hidden_test_in_a_release_is_found(released):
    def plant(cells, book):
        cells["double-check"]["source"] += "\nif True:\n" + TEST

    edit(released, plant)
    assert "hidden test in 04_sample, cell double-check" in whats(leaks.check(released))


def test_a_file_beside_the_notebook_is_read_too(released):
    (released / "exercises" / "04_sample" / "sample.md").write_text(f"notes\n{ANSWER}\n")
    assert "solution" in whats(leaks.check(released))


def page(code):
    return f"<html><body>{highlight(code, PythonLexer(), HtmlFormatter())}</body></html>"


SITE = {
    "highlighted.html": page(TEST),
    "escaped.html": f"<pre>{html.escape(PAIR)}</pre>",
    "numeric.html": f"<pre>{PAIR.replace(chr(34), '&#34;')}</pre>",
    "escaped_twice.html": f"<div data-x='{html.escape(html.escape(PAIR))}'></div>",
    "attribute.html": f"<button data-clipboard-text='{html.escape(PAIR)}'>copy</button>",
    "single_quotes.html": f"<pre>{PAIR.replace(chr(34), chr(39))}</pre>",
    "index.js": f"Search.setIndex({json.dumps({'x': PAIR})})",
    "unicode.js": "var x = " + json.dumps(PAIR).replace("(", "\\u0028"),
    "comment.html": f"<!-- {PAIR} -->",
    "lines.html": "".join(f"<tr><td>{c}</td></tr>" for c in PAIR),
}


def chunk(kind, body):
    return (
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
    )


def png(kind, note):
    """A picture of one pixel with a note in its metadata."""
    head = chunk(b"IHDR", b"\0\0\0\1\0\0\0\1\x08\0\0\0\0")
    pixel = chunk(b"IDAT", zlib.compress(b"\0\0"))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(kind, note) + pixel + chunk(b"IEND", b"")


PICTURES = {
    "plain": png(b"tEXt", b"Comment\0" + PAIR.encode()),
    "compressed": png(b"zTXt", b"Comment\0\0" + zlib.compress(PAIR.encode())),
    "international": png(b"iTXt", b"Comment\0\1\0\0\0" + zlib.compress(PAIR.encode())),
}


def wrapped(text):
    return "\n".join(textwrap.wrap(base64.b64encode(text.encode()).decode(), 76))


TYPESET = PAIR.replace('"sample"', "“sample”").replace('"double"', "‘double’")
SITE |= {
    "hex.html": "<pre>" + "".join(f"&#x{ord(c):x};" for c in PAIR) + "</pre>",
    "quotes.html": f"<p>{TYPESET}</p>",
    "breaks.html": PAIR.replace("(", "<br>(").replace(" ", "&nbsp;"),
    "zero_width.html": "\u200b".join(PAIR),
    "soft_hyphens.html": "&shy;".join(PAIR.split("_")).replace("&shy;", "_&shy;"),
    "link.html": f"<a href='https://x.test/?code={urllib.parse.quote(PAIR)}'>x</a>",
    "data.html": f"<a href='data:text/plain;base64,{wrapped(PAIR)}'>x</a>",
    "numbered.html": "".join(f"<span>{n}</span> {s}\n" for n, s in enumerate([PAIR, TEST], 9)),
    "commented.md": f"# {PAIR}\n",
    "quoted.md": f"> {PAIR}\n",
    "changed.md": f"+ {PAIR}\n- {TEST}\n",
    "session.md": f">>> {PAIR.strip()}\n",
    "remarks.py": f"{PAIR}  # five numbers\n",
    "formatted.py": TEST.replace("(", "(\n    ")
    .replace(", ", ",\n    ")
    .replace("x)", "x,\n)"),
    "joined.py": PAIR.replace(".normal", " \\\n    .normal"),
    "hex.js": "x = '" + PAIR.replace("(", "\\x28").replace(")", "\\u{0029}") + "'",
    "table.csv": f"a,b\n1,{PAIR}\n",
}
PACKED = {
    "picture.png": PICTURES["plain"],
    "compressed.png": PICTURES["compressed"],
    "international.png": PICTURES["international"],
    "log.gz": gzip.compress(PAIR.encode()),
    "wide.txt": PAIR.encode("utf-16"),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_hidden_test_in_a_packed_file_is_found(released, name):
    site = released / "_build" / "html" / "_images"
    site.mkdir(parents=True)
    (site / name).write_bytes(PACKED[name])
    assert "hidden test in 04_sample, cell double-check" in whats(leaks.check(released))


def test_a_hidden_test_in_an_archive_of_the_site_is_found(released):
    site = released / "_build" / "html"
    site.mkdir(parents=True)
    with zipfile.ZipFile(site / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner/a.png", PICTURES["compressed"])
    assert "hidden test" in whats(leaks.check(released))


@pytest.mark.parametrize("kind", PICTURES)
def test_a_hidden_test_in_the_notes_of_a_notebooks_picture_is_found(released, kind):
    def plant(cells, book):
        picture = {"image/png": base64.b64encode(PICTURES[kind]).decode()}
        shown = {"output_type": "display_data", "data": picture, "metadata": {}}
        cells["imports"]["outputs"] = [shown]

    edit(released, plant)
    assert "hidden test in 04_sample, cell double-check" in whats(leaks.check(released))


def test_a_solution_in_an_attached_picture_is_found(released):
    def plant(cells, book):
        picture = base64.b64encode(png(b"tEXt", b"Comment\0" + ANSWER.encode())).decode()
        cells["title"]["attachments"] = {"a.png": {"image/png": picture}}

    edit(released, plant)
    assert "solution in 04_sample, cell double" in whats(leaks.check(released))


def test_a_secret_whose_source_has_comments_is_found_without_them(released):
    def plant(cells, book):
        cells["double"]["source"] = cells["double"]["source"].replace("* 2", "* 2  # twice")

    edit(released, plant, "solutions")
    edit(released, put_in_text)
    assert "solution in 04_sample, cell double" in whats(leaks.check(released))


SHORT = ["    a = x + 1", "    b = a * a", "    c = b - a", "    d = c / b", "    e = d + c"]
SPREAD = {
    "numbers": "\n".join(f"{n} {line}" for n, line in enumerate(SHORT)),
    "remarks": "\n".join(f"{line}  # step {n}" for n, line in enumerate(SHORT)),
    "remarks between": "\n    # the next step\n\n".join(SHORT),
    "comments": "\n".join(f"# {line}" for line in SHORT),
    "diff": "\n".join(f"+ {line}" for line in SHORT),
}


@pytest.mark.parametrize("way", SPREAD)
def test_short_lines_are_found_though_something_stands_between_them(released, way):
    def plant(cells, book):
        body = "\n".join(SHORT)
        cells["double"]["source"] = cells["double"]["source"].replace(
            "    secret_of_double", f"{body}\n    secret_of_double", 1
        )

    edit(released, plant, "solutions")
    edit(released, lambda cells, book: cells["title"].update(source=SPREAD[way]))
    assert "solution in 04_sample, cell double" in whats(leaks.check(released))


def test_lines_spread_over_cells_are_found(released):
    def plant(cells, book):
        body = "\n".join(SHORT)
        cells["double"]["source"] = cells["double"]["source"].replace(
            "    secret_of_double", f"{body}\n    secret_of_double", 1
        )

    edit(released, plant, "solutions")

    def spread(cells, book):
        new = [dict(cells["title"], id=f"x{n}", source=line) for n, line in enumerate(SHORT)]
        book["cells"] += new

    edit(released, spread)
    assert "solution in 04_sample, cell double" in whats(leaks.check(released))


@pytest.mark.parametrize("name", ["a.bin", "noext", "a.pkl"])
def test_every_file_of_a_release_is_read_whatever_its_name(released, name):
    (released / "exercises" / "04_sample" / "data").mkdir()
    (released / "exercises" / "04_sample" / "data" / name).write_bytes(
        b"\0\x80" + ANSWER.encode()
    )
    assert "solution" in whats(leaks.check(released))


@pytest.mark.parametrize("name", SITE)
def test_a_hidden_test_in_the_site_is_found_through_escapes(released, name):
    site = released / "_build" / "html" / "book"
    site.mkdir(parents=True)
    (site / name).write_text(SITE[name])
    assert "hidden test in 04_sample, cell double-check" in whats(leaks.check(released))


@pytest.mark.parametrize(
    "line",
    [
        "### BEGIN HIDDEN TESTS",
        "### END SOLUTION",
        "    ### BEGN HIDDEN TESTS",
        "### BEGIN HIDEN TEST",
        "# begin hidden tests",
        "###BEGIN_HIDDEN_TESTS",
        "### BEGINHIDDENTESTS",
        "### End of solution",
        "### END SOLUTIONS",
        "# -- BEGIN MARK SCHEME --",
        "<!-- begin solution -->",
        "x = 1  ### BEGIN SOLUTION",
    ],
)
def test_a_marker_and_its_near_misses_are_found(released, line):
    edit(released, lambda cells, book: cells["imports"].update(source=f"import torch\n{line}"))
    assert "marker" in whats(leaks.check(released))


@pytest.mark.parametrize(
    "line",
    [
        "# the end of the sentence",
        "# YOUR CODE HERE",
        "## Solution in words",
        "# Begin with the smallest case",
        "# end of the hidden state",
        "A hidden test ends the solution.",
        "# tests",
        "solution = begin + end",
    ],
)
def test_ordinary_lines_are_no_markers(line):
    assert not leaks.is_marker(line)


def test_what_the_package_shows_may_be_shared(released):
    (released / "llmcourse" / "double.py").write_text(f"def double(x):\n{ANSWER}\n")
    edit(released, put_in_text)
    assert leaks.check(released) == []


def test_lines_that_visible_and_hidden_tests_share_are_no_leak(course, released):
    line = "inputs = torch.arange(12.0).reshape(3, 4) / 7\n"

    def plant(cells, book):
        source = cells["double-check"]["source"]
        cells["double-check"]["source"] = line + source.replace(
            "    hidden_input", f"    {line}    hidden_input"
        )

    edit(released, plant, "solutions")
    edit(released, lambda cells, book: cells["double-check"].update(source=line))
    assert leaks.check(released) == []


def test_a_whole_answer_in_another_cell_is_found_though_its_author_put_it_there(released):
    long = "\n".join(f"    partial_result_{i} = x * {i} + {i}" for i in range(3))

    def plant(cells, book):
        cells["double"]["source"] = cells["double"]["source"].replace(
            "    secret_of_double", f"{long}\n    secret_of_double", 1
        )
        cells["imports"]["source"] += f"\ndef fixture(x):\n{long}\n    return x"

    edit(released, plant, "solutions")
    source = f"import torch\ndef fixture(x):\n{long}\n    return x"
    edit(released, lambda cells, book: cells["imports"].update(source=source))
    assert "solution" in whats(leaks.check(released))


@pytest.mark.parametrize("place", ["llmcourse/ops.py", "book/04_sample.md"])
def test_a_twist_in_the_package_or_the_book_is_found(released, place):
    twist = "secret_of_triple = x * 3\n    return secret_of_triple.clone()\n"
    long = "    another_step_of_triple = x + 0\n    one_more_step_of_triple = x + 1\n"

    def plant(cells, book):
        cells["triple"]["source"] = cells["triple"]["source"].replace("N\n", f"N\n{long}")

    edit(released, plant, "solutions")
    (released / place).write_text(f"def triple(x):\n{long}    {twist}")
    assert "holds the twist in 04_sample, cell triple" in whats(leaks.check(released))


@pytest.fixture
def feedback(released):
    """The folder of one learner's feedback."""
    folder = released / "feedback" / "learner-1" / "04_sample"
    folder.mkdir(parents=True)
    return folder


def graded(released, **more):
    """What a page of feedback is made of: the release, its tests, and a cell of a learner's."""
    nb = json.loads((released / "solutions/04_sample/sample.ipynb").read_text())
    nb["cells"].append(nb["cells"][0] | {"metadata": {}} | more)
    path = released / "autograded/learner-1/04_sample/sample.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(nb))


def test_a_hidden_test_in_feedback_is_found(released, feedback):
    (feedback / "sample.html").write_text(page(f"In [3]: {PAIR}"))
    assert "hidden test" in whats(leaks.check(released))
    graded(released)  # it stands there, but no learner typed it
    assert "hidden test" in whats(leaks.check(released))


def test_a_learner_may_have_the_same_thought(released, feedback):
    """Their answer may be the instructor's, and their own test the hidden one."""
    graded(released, source=f"{PAIR}\n### BEGIN SOLUTION")
    (feedback / "sample.html").write_text(page(f"{PAIR}\n### BEGIN SOLUTION\n{ANSWER}"))
    assert leaks.check(released) == []


def test_a_comment_between_the_lines_makes_them_nobody_elses(released, feedback):
    typed = f"with checks.hidden():\n    # mine\n{PAIR}"
    graded(released, source=typed)
    (feedback / "sample.html").write_text(page(typed))
    assert leaks.check(released) == []


def test_what_another_exercise_hides_cannot_come_from_its_grading(released, feedback):
    other = feedback.with_name("05_other")
    other.mkdir()
    (other / "other.html").write_text(page(PAIR))
    assert leaks.check(released) == []


def test_an_encoded_picture_is_no_leak(released):
    noise = base64.b64encode(bytes(range(256)) * 20).decode()
    (released / "exercises" / "04_sample" / "data.html").write_text(f"<img src='{noise}'>")
    assert leaks.check(released) == []


def test_an_archive_that_bursts_is_unpacked_up_to_a_limit():
    bomb = base64.b64encode(zlib.compress(bytes(20_000_000), 9))
    page = b"\n!\n".join([bomb] * 50)  # 1.3 MB that hold 1000
    most = unpack.HUGE + (1 + unpack.TIMES) * len(page)
    assert sum(map(len, unpack.layers(page))) <= most
    assert sum(map(len, unpack.encoded(page.decode()))) <= most


def test_notes_of_a_picture_burst_no_more_than_one(monkeypatch):
    monkeypatch.setattr(unpack, "HUGE", 1_000_000)
    note = b"zTXta\0\0" + zlib.compress(bytes(900_000))
    assert sum(map(len, unpack.layers(b"\x89PNG" + note * 300))) < 2_000_000 + 11 * 300 * len(
        note
    )


CODE = [
    ("a = 1  # one", "a = 1  "),
    ("# one\n#two\n  # three", "\n\n  "),
    ("a#b", "a#b"),
    ("a = '# no'", "a = '# no'"),
    ("a  # it's\nb  # so", "a  # it's\nb  "),
    ("'a'  # one # two", "'a'  "),
    ("# 'a' # b", "# 'a' "),
]


@pytest.mark.parametrize(("code", "bare"), CODE)
def test_comments_go_unless_they_may_be_part_of_a_string(code, bare):
    assert leaks.uncomment(code) == bare


REGIONS = [
    ("a\n### BEGIN SOLUTION\nx\ny\n### END SOLUTION\nb", [("SOLUTION", "x\ny")], "a\n\nb"),
    ("### BEGIN SOLUTION\n### END SOLUTION", [("SOLUTION", "")], ""),
    ("### BEGIN SOLUTION\nx", [], "### BEGIN SOLUTION\nx"),
    ("### END SOLUTION\nx", [], "### END SOLUTION\nx"),
    (
        "### BEGIN SOLUTION\na\n### BEGIN HIDDEN TESTS\nb\n### END HIDDEN TESTS",
        [("HIDDEN TESTS", "b")],
        "### BEGIN SOLUTION\na\n",
    ),
    (
        "# BEGIN SOLUTION\na\n# END SOLUTION\n# BEGIN MARK SCHEME\nb\n# END MARK SCHEME",
        [("SOLUTION", "a"), ("MARK SCHEME", "b")],
        "\n",
    ),
]


@pytest.mark.parametrize(("text", "found", "rest"), REGIONS)
def test_regions_lie_between_a_marker_and_its_partner(text, found, rest):
    assert leaks.regions(text) == found and leaks.outside(text) == rest
