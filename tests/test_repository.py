"""The repository keeps its own rules: form of notebooks, links, words that must not occur."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from llmcourse import notebooks

ROOT = Path(__file__).parents[1]
SUFFIXES = {
    ".py",
    ".md",
    ".yml",
    ".toml",
    ".txt",
    ".ipynb",
    ".cff",
    ".css",
    ".js",
    ".bib",
    ".svg",
}
SKIPPED = {".git", ".venv", "_build", "my_work", "node_modules", "__pycache__"}


def repository_files():
    """What a clone would hold: tracked files, and new ones that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        paths = [ROOT / line for line in listed.stdout.splitlines()]
    else:  # an unpacked archive
        paths = [p for p in ROOT.rglob("*") if not SKIPPED & set(p.relative_to(ROOT).parts)]
    return [p for p in paths if p.is_file()]


FILES = repository_files()
TEXTS = [p for p in FILES if p.suffix in SUFFIXES or p.name in ("Makefile", "run", "LICENSE")]
NOTEBOOKS = [p for p in FILES if p.suffix == ".ipynb"]
MARKDOWN = [p for p in FILES if p.suffix == ".md"]


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_notebooks_are_canonical(path):
    assert notebooks.faults(path.read_text(encoding="utf-8")) == [], "run: make fmt"


def test_a_notebook_that_is_not_canonical_is_refused():
    assert notebooks.faults('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}')


# Written so that this file does not hold the words it looks for.
FORBIDDEN = {
    "a place on one machine": r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/",
    "the host of a package registry": r"(?:pypi|pythonhosted|npmjs|conda)\.(?:org|com)",
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what):
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{name(path)}:{number}: {line.strip()[:80]}"
        for path in TEXTS
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a place on one machine", "open('/ro" + "ot/x')"),
        ("the host of a package registry", "https://py" + "pi.org/simple"),
        ("unfinished work", "# TO" + "DO later"),
    ],
)
def test_what_must_not_occur_would_be_found(what, text):
    assert re.search(FORBIDDEN[what], text)


def anchors(path):
    """GitHub's anchors of a file's headings."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


def broken_links(path, text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    links = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    for link in links:
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        place = (path.parent / target) if target else path
        if not place.exists() or (
            anchor and place.suffix == ".md" and anchor not in anchors(place)
        ):
            yield link


@pytest.mark.parametrize("path", MARKDOWN, ids=name)
def test_links_to_other_files_lead_somewhere(path):
    assert list(broken_links(path, path.read_text(encoding="utf-8"))) == []


def test_a_broken_link_would_be_found():
    text = "[a](README.md) [b](nowhere.md) [c](README.md#learn) [d](README.md#nowhere)"
    assert list(broken_links(ROOT / "README.md", text)) == ["nowhere.md", "README.md#nowhere"]


def test_every_constraint_is_exact_and_has_no_local_version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_tables_of_grades_that_the_guide_writes_are_ignored():
    guide = (ROOT / "book" / "instructors.md").read_text()
    ignored = (ROOT / ".gitignore").read_text().split()
    tables = re.findall(r"--to (\S+)", guide)
    assert len(tables) == 3
    assert [t for t in tables if not any(fnmatch(f"/{t}", line) for line in ignored)] == []


def test_the_licence_holds_both():
    text = (ROOT / "LICENSE").read_text()
    assert "Permission is hereby granted, free of charge" in text
    assert "creativecommons.org/licenses/by/4.0" in text
