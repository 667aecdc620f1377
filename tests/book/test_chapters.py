"""The form that every chapter keeps (anatomy, limits, prose), and that every page keeps."""

import ast
import re

import pytest
import yaml
from prose import (
    BOOK,
    COURSE,
    ROOT,
    Chapter,
    capitals,
    chapters,
    headings,
    measurements,
    prose,
    two_sentences,
)

PAGES = sorted(BOOK.glob("*.md"))
each_chapter = pytest.mark.parametrize("chapter", chapters(), ids=lambda c: c.path.stem)


def texts() -> list[tuple[str, str]]:
    pages = [(page.name, page.read_text(encoding="utf-8")) for page in PAGES]
    return pages + [(chapter.path.name, chapter.markdown) for chapter in chapters()]


each_text = pytest.mark.parametrize(
    "text", [t for _, t in texts()], ids=[n for n, _ in texts()]
)


def test_course_is_numbered_in_order() -> None:
    assert [row["number"] for row in COURSE] == [f"{n:02}" for n in range(1, len(COURSE) + 1)]
    assert len({row["slug"] for row in COURSE}) == len(COURSE)
    assert all(row["question"].endswith("?") for row in COURSE)


def test_written_chapters_and_no_others_are_in_the_table_of_contents() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = {
        entry["file"].removeprefix("book/"): part["caption"]
        for part in toc["parts"]
        for entry in part["chapters"]
        if re.match(r"book/\d\d_", entry["file"])
    }
    written = {chapter.path.stem: chapter.row["part"] for chapter in chapters()}
    assert listed == written
    assert list(listed) == sorted(listed)
    assert {p.stem for p in BOOK.glob("*.ipynb")} == set(written)


@each_chapter
def test_opening_asks_the_question_and_says_what_is_needed(chapter: Chapter) -> None:
    first = "".join(chapter.cells[0]["source"])
    assert first.startswith(f"# {chapter.row['title']}\n")
    assert f"**{chapter.row['question']}**" in first
    assert re.search(r"\*\*You need\*\*.*\]\(\w+\.(ipynb|md)\)", first, re.DOTALL)
    goals = first.partition("**You will be able to**")[2]
    assert len(re.findall(r"^- ", goals, re.MULTILINE)) >= 3


@each_chapter
def test_chapter_has_its_sections(chapter: Chapter) -> None:
    text = chapter.markdown
    found = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert found[-1] == "What breaks next"
    assert "Summary" in found[-3:]
    summary = text.partition("\n## Summary\n")[2].partition("\n## ")[0]
    assert re.search(r"^\| --- ", summary, re.MULTILINE), "the summary has no table"
    assert f"`{chapter.path.stem}`" in text, "the graded exercise is not named"
    assert "```{literalinclude} ../llmcourse/" in text, "the package's own code is not shown"
    assert re.search(r"^\$\$ \(eq-[\w-]+\)$|\$\$ \(eq-[\w-]+\)$", text, re.MULTILINE)


@each_chapter
def test_last_line_names_the_next_chapter(chapter: Chapter) -> None:
    last = "".join(chapter.cells[-1]["source"]).rstrip()
    assert last.endswith("```{next-chapter}\n```")
    assert chapter.markdown.count("{next-chapter}") == 1


@each_chapter
def test_chapter_keeps_its_length(chapter: Chapter) -> None:
    words = sum(len(line.split()) for line in prose(chapter.markdown))
    assert 1_500 <= words <= 3_000, f"{words} words"
    assert 8 <= len(chapter.code) <= 35, f"{len(chapter.code)} code cells"


@each_chapter
def test_code_cells_fit_on_a_screen(chapter: Chapter) -> None:
    long = {
        cell["id"]: len(cell["source"]) for cell in chapter.code if len(cell["source"]) > 30
    }
    assert long == {}


@each_chapter
def test_chapter_has_three_figures_with_words(chapter: Chapter) -> None:
    figures = chapter.calls("show", "animate")
    assert len(figures) >= 3
    names = []
    for figure in figures:
        given = {word.arg: word.value for word in figure.keywords}
        assert {"alt", "caption", "name"} <= set(given), ast.unparse(figure)
        names.append(ast.unparse(given["name"]))
    assert len(set(names)) == len(names)


@each_chapter
def test_chapter_defines_nothing_that_the_package_has(chapter: Chapter) -> None:
    """A chapter shows the package's code; a copy of it would grow old."""
    package = {}
    for file in (ROOT / "llmcourse").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(node.body) > 2:
                package[ast.dump(ast.Module(node.body[1:], []))] = f"{file.name}: {node.name}"
    copies = []
    for cell in chapter.code:
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for body in (node.body, node.body[1:]):
                    copies.append(package.get(ast.dump(ast.Module(body, []))))
    assert not any(copies), [name for name in copies if name]


@each_text
def test_one_sentence_a_line(text: str) -> None:
    assert [line for line in prose(text) if two_sentences(line)] == []


@each_text
def test_headings_are_in_sentence_case(text: str) -> None:
    assert [(h, capitals(h)) for h in headings(text) if capitals(h)] == []
    assert len(re.findall(r"^# ", "\n".join(prose(text)), re.MULTILINE)) == 1


@each_text
def test_no_measurement_is_typed(text: str) -> None:
    """Numbers with a unit of time, speed or share come from code, through glue."""
    assert [(line, m) for line in prose(text) if (m := measurements(line))] == []


def test_prose_laws_catch_what_they_forbid() -> None:
    assert two_sentences("It is fast. It is small.")
    assert two_sentences("Why? Because.")
    assert two_sentences("1. **Mask.** Scores go. A token stays.")
    assert not two_sentences('1. **Mask.** Scores go, as in "It rains. It pours".')
    assert not two_sentences("Ask A. N. Other, e.g. Gomez et al. {cite:p}`x`.")
    assert capitals("The Key Idea") == ["Key", "Idea"]
    assert capitals("The KV cache of GPT-2 in Kimi K3") == []
    assert measurements("It took 3.2 ms, 40% less.") == ["3.2 ms", "40%"]
    assert measurements("It took {glue:text}`time:.1f` ms, a quarter less.") == []
    marked = (
        "# T\n\n$$\na. B\n$$ (eq-x)\n\n```python\nA = 1. B\n```\n\n```{note}\nRead. This.\n```"
    )
    assert prose(marked) == ["# T", "Read. This."]


def test_glossary_is_in_order_and_every_entry_says_something() -> None:
    text = (BOOK / "glossary.md").read_text(encoding="utf-8")
    block = text.partition("```{glossary}\n")[2].partition("```")[0].rstrip().split("\n\n")
    terms = [entry.splitlines()[0] for entry in block]
    assert terms == sorted(terms, key=lambda term: term.lower().replace("-", ""))
    assert all(len(entry.splitlines()) > 1 for entry in block)
