"""The build as a gate, on a book of two pages: what it lets through and what it redoes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from visits import ROOT

pytestmark = pytest.mark.slow
TOC = "format: jb-book\nroot: book/index\nchapters:\n  - file: book/01_tokens\n"
INDEX = "# Index\n\nA word: {term}`token`.\n\n```{glossary}\ntoken\n  A piece.\n```\n"


class Book:
    """A book with this project's configuration and extensions, and a package of one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("_ext", "_assets"):
            shutil.copytree(ROOT / "book" / name, folder / "book" / name)
        for name in ("_config.yml", "book/chapters.yml", "book/references.bib"):
            shutil.copy(ROOT / name, folder / name)
        self.write("_toc.yml", TOC)
        self.write("book/index.md", INDEX)
        self.write("llmcourse/__init__.py", "WORD = 'first'\n")
        self.chapter("import llmcourse\nprint('the word is', llmcourse.WORD)")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")

    def chapter(self, code: str) -> None:
        cells = [
            {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Chapter\n"},
            {"cell_type": "code", "id": "b", "metadata": {}, "source": code}
            | {"execution_count": None, "outputs": []},
            {"cell_type": "markdown", "id": "c", "metadata": {}}
            | {"source": "```{next-chapter}\n```\n"},
        ]
        meta = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        notebook = {"cells": cells, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}
        self.write("book/01_tokens.ipynb", json.dumps(notebook))

    def build(self) -> tuple[int, str]:
        """Exit status and console of the build that `make book` runs."""
        command = [str(Path(sys.executable).with_name("jupyter-book")), "build"]
        options = ["--path-output", ".", "-W", "-n", "--keep-going", "."]
        done = subprocess.run(
            [*command, *options],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout

    @property
    def page(self) -> str:
        return (self.folder / "_build/html/book/01_tokens.html").read_text(encoding="utf-8")


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


def test_build_executes_once_and_again_when_the_package_changes(book: Book) -> None:
    status, console = book.build()
    assert status == 0, console
    assert "the word is first" in book.page
    assert "Executing notebook" in console
    assert "WARNING" not in console

    status, console = book.build()
    assert status == 0, console
    assert "Executing notebook" not in console and "no targets are out of date" in console

    book.write("llmcourse/__init__.py", "WORD = 'second'\n")
    status, console = book.build()
    assert status == 0, console
    assert "the word is second" in book.page


def test_failing_cell_fails_the_build(book: Book) -> None:
    book.chapter("raise ValueError('a cell that fails')")
    status, console = book.build()
    assert status != 0
    assert "a cell that fails" in console and "01_tokens.ipynb" in console


def test_warning_fails_the_build_until_it_is_mended(book: Book) -> None:
    """Sphinx alone reads nothing in a second run, and passes."""
    book.write("book/index.md", INDEX + "\nA word that nobody explains: {term}`tokn`.\n")
    for _ in range(2):
        status, console = book.build()
        assert status != 0
        assert "tokn" in console
    book.write("book/index.md", INDEX)
    status, console = book.build()
    assert status == 0, console


def test_next_chapter_is_named_before_it_is_written_and_linked_after(book: Book) -> None:
    status, console = book.build()
    assert status == 0, console
    assert "not written yet" in book.page and "02_gpt2.html" not in book.page

    second = json.loads((book.folder / "book/01_tokens.ipynb").read_text())
    book.write("book/02_gpt2.ipynb", json.dumps(second))
    book.write("_toc.yml", TOC + "  - file: book/02_gpt2\n")
    status, console = book.build()
    assert status == 0, console
    assert "not written yet" not in book.page and "02_gpt2.html" in book.page
