"""Every assignment belongs to a chapter, and points at equations that stand there."""

import re
from pathlib import Path

import pytest

from llmcourse.grading import zoo

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("solutions/*/*.ipynb"))


def prose(path):
    cells = zoo.read_notebook(path)["cells"]
    return "\n".join(c["source"] for c in cells if c["cell_type"] == "markdown")


@pytest.mark.parametrize("path", SOURCES, ids=[p.parent.name for p in SOURCES])
def test_equations_named_in_an_exercise_stand_in_its_chapter(path):
    named = set(re.findall(r"\beq-[a-z0-9-]+", prose(path)))
    chapter = ROOT / f"book/{path.parent.name}.ipynb"
    assert chapter.is_file(), f"write {chapter.relative_to(ROOT)} first"
    there = set(re.findall(r"\((eq-[a-z0-9-]+)\)", prose(chapter)))
    assert named
    assert named <= there
