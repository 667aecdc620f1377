"""A submission put back into the form of its release: whatever a learner did to it but answer.

nbgrader leaves a deleted check with its old score and fails on odd metadata. Here every cell
that the course owns is restored from the gradebook, in its place; what stands twice, or is not
of the release, is the learner's own.
"""

from bisect import bisect_left
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import nbformat
from nbformat import NotebookNode

NOTES = "llmcourse"  # a notebook's metadata: what was put back, and which checks score 0 for it
KEPT = {"code": ("execution_count", "outputs"), "markdown": ("attachments",)}


@dataclass(frozen=True)
class Template:
    """The cells of a release that have an id, in their order, as the gradebook has them."""

    cells: tuple[dict[str, Any], ...]
    kernelspec: str | None = None

    @property
    def ids(self) -> list[str]:
        return [c["grade_id"] for c in self.cells]


def restore(nb: NotebookNode, known: Template) -> None:
    """Put every cell of the template into the notebook once, in its order, as it should be.

    An answer stays where the learner has it. A check that was missing, or stood elsewhere, is
    put back and noted: it scores 0, and the note says why.
    """
    cells = {c["grade_id"]: c for c in known.cells}
    for cell in nb.cells:
        _plain(cell)
    chosen, elsewhere = _chosen(nb, known)
    for cell in nb.cells:
        grade_id = _grade_id(cell)
        if grade_id in chosen and chosen[grade_id] is cell:
            _overwrite(cell, cells[grade_id])
        else:  # pasted, split off, or never of the release
            cell.metadata.pop("nbgrader", None)
    moved = {i for i in elsewhere if cells[i]["locked"]}
    nb.cells = [c for c in nb.cells if _grade_id(c) not in moved]
    missing = [i for i in known.ids if i not in chosen]
    in_order = chosen.keys() - elsewhere
    for grade_id in known.ids:
        if grade_id in moved or grade_id not in chosen:
            new = new_cell(cells[grade_id])
            if nb.nbformat_minor < 5:
                del new["id"]
            _insert(nb, known, in_order, new)
            in_order |= {grade_id}
    graded = {i for i in cells if cells[i]["grade"] and not cells[i]["solution"]}
    nb.metadata[NOTES] = {
        "missing": missing, "moved": sorted(moved),
        "without score": sorted(graded & {*missing, *moved}),
    }  # fmt: skip


def notes(nb: NotebookNode) -> list[str]:
    """What `restore` and `execute` found, in words."""
    found = nb.metadata.get(NOTES, {})
    cut = ["its cells show more than fits: the rest was cut"] if found.get("cut") else []
    said = {"missing": "was missing and put back", "moved": "had been moved and was put back"}
    put_back = [f"{n} {text}" for kind, text in said.items() for n in found.get(kind, [])]
    return put_back + cut


def _plain(cell: NotebookNode) -> None:
    """Metadata that is what it should be, or none."""
    if not isinstance(cell.get("metadata"), dict):
        cell["metadata"] = NotebookNode()
    cell["metadata"].pop("deletable", None)
    if not isinstance(cell["metadata"].get("nbgrader"), dict):
        cell["metadata"].pop("nbgrader", None)


def _grade_id(cell: NotebookNode) -> str:
    return str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))


def _overwrite(cell: NotebookNode, known: dict[str, Any]) -> None:
    """Everything but an answer's text as in the release."""
    kind = known["cell_type"]
    if cell.cell_type != kind:
        for name in {n for names in KEPT.values() for n in names} & cell.keys():
            del cell[name]
        cell.cell_type = kind
    if kind == "code":
        cell.execution_count, cell.outputs = None, []
    if known["locked"]:
        cell.source = known["source"]
    names = ("grade_id", "locked", "grade", "solution", "task", "checksum", "cell_type")
    info = {name: known[name] for name in names} | {"schema_version": 3}
    if known["points"] is not None:
        info["points"] = known["points"]
    cell.metadata = NotebookNode(nbgrader=nbformat.from_dict(info))  # and no tag to hide it


def new_cell(known: dict[str, Any]) -> NotebookNode:
    """A cell of the release, as the gradebook has it."""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell,
            "raw": nbformat.v4.new_raw_cell}[known["cell_type"]]  # fmt: skip
    cell: NotebookNode = make(known["source"])
    _overwrite(cell, known)
    return cell


def _chosen(nb: NotebookNode, known: Template) -> tuple[dict[str, NotebookNode], set[str]]:
    """Of each cell of the release the copy that counts; and which of them are out of order.

    As many as can be are in the release's order; of two copies in a row the first counts.
    """
    place = {name: i for i, name in enumerate(known.ids)}
    there = [cell for cell in nb.cells if _grade_id(cell) in place]
    in_order = _rising([place[_grade_id(cell)] for cell in there])
    chosen = {_grade_id(there[i]): there[i] for i in in_order}
    elsewhere = {_grade_id(cell) for cell in there} - chosen.keys()
    for cell in there:
        chosen.setdefault(_grade_id(cell), cell)
    return chosen, elsewhere


def _rising(numbers: Sequence[int]) -> list[int]:
    """Where the longest strictly rising part of a sequence lies; quick for a long one too."""
    ends: list[int] = []  # of the rising parts of each length, where the lowest one ends
    lows: list[int] = []  # and its last number
    before: list[int] = []
    for i, number in enumerate(numbers):
        length = bisect_left(lows, number)
        before.append(ends[length - 1] if length else -1)
        if length == len(lows):
            ends.append(i)
            lows.append(number)
        elif number < lows[length]:
            ends[length], lows[length] = i, number
    part: list[int] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        part.append(at)
        at = before[at]
    return part[::-1]


def _insert(
    nb: NotebookNode, known: Template, in_order: AbstractSet[str], cell: NotebookNode
) -> None:
    """Behind the nearest cell of the release that stands before it, and is in its place."""
    earlier = in_order & set(known.ids[: known.ids.index(_grade_id(cell))])
    places = [i for i, c in enumerate(nb.cells) if _grade_id(c) in earlier]
    nb.cells.insert(max(places, default=-1) + 1, cell)
