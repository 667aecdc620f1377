"""Directives that read the course's list of chapters, `book/chapters.yml`.

`{next-chapter}` ends a chapter: it names the next one and links it once it is written.
`{course-map}` lists all chapters by part, each with its question.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

CHAPTERS = Path(__file__).parent.parent / "chapters.yml"


def chapters() -> list[dict[str, str]]:
    """The chapters in order: number, slug, title, question and part of each."""
    return yaml.safe_load(CHAPTERS.read_text(encoding="utf-8"))


def document(chapter: dict[str, str]) -> str:
    """The Sphinx document of a chapter, whether it is written or not."""
    return f"book/{chapter['number']}_{chapter['slug']}"


class ChapterDirective(SphinxDirective):
    """What both directives share: the list, and a title that links where there is a page."""

    def written(self, chapter: dict[str, str]) -> bool:
        return document(chapter) in self.env.found_docs

    def title(self, chapter: dict[str, str]) -> nodes.Node:
        title = nodes.strong("", chapter["title"])
        if not self.written(chapter):
            return title
        return addnodes.pending_xref(
            "",
            title,
            refdomain="std",
            reftype="doc",
            reftarget="/" + document(chapter),
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )


class NextChapter(ChapterDirective):
    """The last line of a chapter: what comes next, and the question that it answers."""

    def run(self) -> list[nodes.Node]:
        listed = chapters()
        here = [document(chapter) for chapter in listed]
        if self.env.docname not in here:
            raise self.error(f"{self.env.docname} is not a chapter of {CHAPTERS.name}")
        number = here.index(self.env.docname) + 1
        box = nodes.container(classes=["next-chapter"])
        if number == len(listed):
            box += nodes.paragraph("", "This is the last chapter.")
            return [box]
        following = listed[number]
        line = nodes.paragraph("", f"Next, chapter {int(following['number'])}: ")
        line += self.title(following)
        if not self.written(following):
            line += nodes.Text(" (not written yet)")
        box += line
        box += nodes.paragraph("", following["question"])
        return [box]


class CourseMap(ChapterDirective):
    """All chapters by part; the page's own words say what the parts are about."""

    def run(self) -> list[nodes.Node]:
        box = nodes.container(classes=["course-map"])
        for part, members in groupby(chapters(), key=lambda chapter: chapter["part"]):
            box += nodes.rubric("", part)
            first, *rest = members
            start = int(first["number"])
            listing = nodes.enumerated_list("", enumtype="arabic", prefix="", suffix=".")
            if start != 1:
                listing["start"] = start
            for chapter in [first, *rest]:
                listing += self.row(chapter)
            box += listing
        if not all(self.written(chapter) for chapter in chapters()):
            box += nodes.paragraph("", "A chapter without a link is not written yet.")
        return [box]

    def row(self, chapter: dict[str, str]) -> nodes.list_item:
        item = nodes.list_item("", classes=[] if self.written(chapter) else ["unwritten"])
        item += nodes.paragraph("", "", self.title(chapter))
        item += nodes.paragraph("", chapter["question"])
        return item


def number(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Number chapters and their equations from the list: Sphinx counts what is written."""
    numbers = {document(chapter): int(chapter["number"]) for chapter in chapters()}
    for name in numbers.keys() & env.toc_secnumbers.keys():
        marked = [env.titles[name], *env.tocs[name].findall(nodes.reference)]
        for node in marked:
            if node.get("secnumber"):
                node["secnumber"] = (numbers[name], *node["secnumber"][1:])
        equations = env.toc_fignumbers.get(name, {}).values()
        for counted in (env.toc_secnumbers[name], *equations):
            counted |= {at: (numbers[name], *n[1:]) for at, n in counted.items() if n}
    return []


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-get-updated", number, priority=900)  # after Sphinx has counted
    app.add_directive("next-chapter", NextChapter)
    app.add_directive("course-map", CourseMap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
