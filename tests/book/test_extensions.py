"""The Sphinx extensions' parts that need no build; tests/site builds with them."""

import sys
from pathlib import Path

import pytest
from docutils import nodes
from prose import BOOK

sys.path.insert(0, str(BOOK / "_ext"))
import api
import author_year
import freshness
import offline
from pybtex.database import parse_file, parse_string

BIBLIOGRAPHY = parse_file(str(BOOK / "references.bib")).entries


def test_fingerprint_sees_contents_and_names_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "llmcourse" / "a.py"
    file.parent.mkdir()
    seen = set()
    for name, text in [("a.py", "1"), ("a.py", "2"), ("b.py", "2")]:
        for old in file.parent.glob("*.py"):
            old.unlink()
        (file.parent / name).write_text(text)
        seen.add(freshness.fingerprint(tmp_path, ["llmcourse"]))
    assert len(seen) == 3
    (file.parent / "__pycache__").mkdir()
    (file.parent / "__pycache__" / "a.pyc").write_text("x")
    assert freshness.fingerprint(tmp_path, ["llmcourse"]) in seen


def test_fingerprint_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    for name in ("one", ".two"):
        (tmp_path / name / "llmcourse").mkdir(parents=True)
        (tmp_path / name / "llmcourse" / "a.py").write_text("1")
    one, two = (freshness.fingerprint(tmp_path / n, ["llmcourse"]) for n in ("one", ".two"))
    assert one == two != freshness.fingerprint(tmp_path, ["llmcourse"])


@pytest.mark.parametrize(
    ("authors", "expected"),
    [
        ("Gage, Philip", "Gage 1994"),
        ("Press, Ofir and Wolf, Lior", "Press and Wolf 1994"),
        ("de Jong, Michiel and B, C and D, E", "de Jong et al. 1994"),
        ("{Kimi Team}", "Kimi Team 1994"),
    ],
)
def test_label_is_author_and_year(authors: str, expected: str) -> None:
    entry = parse_string(f"@misc{{x, author={{{authors}}}, year={{1994}}}}", "bibtex")
    assert author_year.label(entry.entries["x"]) == expected


def test_equal_labels_get_letters() -> None:
    entries = [BIBLIOGRAPHY[key] for key in ("attnres", "kimik3", "gage1994")]
    labels = list(author_year.AuthorYearLabels().format_labels(entries))
    assert labels == ["Kimi Team 2026a", "Kimi Team 2026b", "Gage 1994"]


@pytest.mark.parametrize("key", list(BIBLIOGRAPHY))
def test_every_work_can_be_found(key: str) -> None:
    """Author, title, year, and where it appeared; a preprint's year is not after its work's."""
    entry = BIBLIOGRAPHY[key]
    assert entry.persons["author"] and entry.fields["title"] and entry.fields["year"]
    places = {"booktitle", "journal", "institution", "howpublished", "eprint"}
    assert places & set(entry.fields)
    if "eprint" in entry.fields:
        assert 2000 + int(entry.fields["eprint"][:2]) <= int(entry.fields["year"])


def test_mathjax_comes_with_all_that_it_may_load(tmp_path: Path) -> None:
    offline.ship_mathjax(tmp_path)
    shipped = {file.suffix for file in tmp_path.rglob("*") if file.is_file()}
    assert shipped == {".js", ".woff"}
    assert (tmp_path / "mathjax" / "tex-mml-chtml.js").is_file()


def test_a_docstring_becomes_paragraphs_with_a_line_for_each_argument() -> None:
    found = api.words(
        """Do it.

        x: [B, T] or
            more, with `code`.
        y, z: numbers.
        Returns what is left.

            do(x)
        """
    )
    assert isinstance(found.pop(), nodes.literal_block)
    assert [p.astext() for p in found] == [
        "Do it.",
        "x: [B, T] or more, with code.",
        "y, z: numbers.",
        "Returns what is left.",
    ]


def test_a_signature_has_names_and_defaults_only() -> None:
    def call(x: int, *, size: float = 2.0) -> str: ...

    assert api.signature("call", call) == "call(x, *, size=2.0)"
    assert api.signature("Error", ValueError) == "Error"


def test_the_api_page_leaves_no_module_of_the_course_out() -> None:
    page = (BOOK / "api.md").read_text(encoding="utf-8")
    root = BOOK.parent / "llmcourse"
    for folder in ("ops", "layers", "models"):
        for file in (root / folder).glob("[a-z]*.py"):
            module = f"llmcourse.{folder}.{file.stem}"
            helper = file.stem in ("common", "recurrent", "gated")
            assert helper or module in page, module
