"""Feedback that shows a learner's work, scores and messages, and nothing of a hidden test."""

import html
import re
from typing import Any

from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from llmcourse.grading import unpack
from llmcourse.grading.leaks import COMMENT, REGION, is_marker, squeeze, unwrap

FAILURE = "CheckFailed"  # llmcourse.checks: the one error whose text is meant for learners
WITHHELD = "(withheld: it holds text of a hidden test)"
SAID = {  # of split grading (examiner, execute), then of nbgrader's own
    "NotGraded": "this check did not run to its end",
    "NotRun": "this check did not run to its end",
    "Restored": "this check was not in its place in what you handed in, and scores 0",
    "ProcessEnded": "the process that ran your code had ended, by itself or at a limit",
    "CellTimeoutError": "this cell took too long and was stopped",
    "DeadKernelError": "the kernel died while this cell ran",
}


class HideHidden(NbGraderPreprocessor):
    """Take hidden tests, and all that could tell of them, out of an autograded notebook."""

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Return the notebook as its learner may see it."""
        tests = [m for cell in nb.cells for m in REGION.findall(cell.source) if _graded(cell)]
        bare = [COMMENT.sub("", text) for _, text in tests]
        lines = {squeeze(line).rstrip(",") for text in bare for line in text.split("\n")}
        # A line that also stands where everyone reads it is none: a long function's name alone.
        public = squeeze("\n".join(REGION.sub("", c.source) for c in nb.cells if _locked(c)))
        secret = {line for line in lines if len(line) >= 16 and line not in public}
        for cell in nb.cells:
            if _graded(cell):
                self._clean_graded(cell, secret)
            elif cell.cell_type == "code":
                cell.outputs = [_withhold(out, secret) for out in cell.outputs]
        return nb, resources

    def _clean_graded(self, cell: NotebookNode, secret: set[str]) -> None:
        visible = REGION.sub("", cell.source)
        # A marker without its partner: rather too little than a line of a test.
        kept = visible.split("\n")
        broken = next((i for i, line in enumerate(kept) if is_marker(line)), len(kept))
        cell.source = "\n".join(kept[:broken]).rstrip()
        if cell.cell_type == "code" and not cell.metadata.nbgrader.get("solution"):
            cell.outputs = _messages(cell.outputs, cell.source, secret)


def _graded(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def _locked(cell: NotebookNode) -> bool:
    """Say whether grading restores a cell: what stands there is the course's own."""
    return bool(cell.metadata.get("nbgrader", {}).get("locked"))


def _messages(
    outputs: list[NotebookNode], visible: str, secret: set[str]
) -> list[NotebookNode]:
    """Return what a graded cell may show: the message of its check, without a traceback."""
    errors = [out for out in outputs if out.output_type == "error"]
    for out in errors:
        text = _say(out.ename, out.evalue, visible)
        # A visible check shows what a learner's function raised, perhaps a line it looked up.
        text = WITHHELD if _tells(text, secret) else text
        out.evalue, out.traceback = "", text.splitlines()
    return errors


def _say(ename: str, evalue: str, visible: str) -> str:
    if ename == FAILURE:
        return evalue
    missing = re.match(r"name '(\w+)' is not defined", evalue)
    if missing and re.search(rf"\b{missing[1]}\b", visible):
        return f"{ename}: {missing[0]}"
    return f"{ename}: {SAID.get(ename, 'the check could not run to its end')}"


def _withhold(out: NotebookNode, secret: set[str]) -> NotebookNode:
    """Return an output, or a note in its place where it shows a line of a hidden test."""
    if _tells("\n".join(_texts(out)), secret):
        return NotebookNode(output_type="stream", name="stdout", text=WITHHELD)
    return out


def _tells(text: str, secret: set[str]) -> bool:
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    inner = [unpack.text(raw) for raw in unpack.encoded(text)]
    said = [squeeze(one) for whole in (text, *inner) for one in unwrap(whole)]
    return any(line in one for line in secret for one in said)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _texts(item)] if isinstance(value, list) else []


class HarmlessLinks(NbGraderPreprocessor):
    """Take links that would run something out of Markdown, which SanitizeHTML does not read."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Return the cell with the colon behind such a word gone: `javascript.alert()`."""
        if cell.cell_type == "markdown" and RUNS.search(html.unescape(cell.source)):
            cell.source = RUNS.sub(r"\1.", html.unescape(cell.source))
        return cell, resources


def _spaced(word: str) -> str:
    return r"\s*".join(word)  # browsers read a name with blanks in it too


RUNS = re.compile(
    rf"({_spaced('javascript')}|{_spaced('vbscript')}|{_spaced('data')})\s*:(?!\s*image/)", re.I
)


class FeedbackExporter(HTMLExporter):
    """nbgrader's feedback page, readable without a network, its scores under their names."""

    def from_notebook_node(  # type: ignore[override]  # as nbconvert's own
        self, nb: NotebookNode, resources: Any = None, **kw: Any
    ) -> tuple[str, ResourcesDict]:
        """Return the page and its resources, without what is loaded from elsewhere."""
        page, resources = super().from_notebook_node(nb, resources, **kw)
        page = re.sub(r"<script\b.*?</script>", _keep_local, page, flags=re.I | re.S)
        page = re.sub(r"<link\b[^>]*>", _keep_local, page, flags=re.I)
        # The list of scores says which function each of them is for.
        page = re.sub(r'(<a href="#([\w-]+?)(?:-check)?">)Test cell(?=</a>)', r"\1\2", page)
        return page, resources


def _keep_local(element: re.Match[str]) -> str:
    return "" if re.search(r"[\"'=](?:https?:)?//", element[0]) else element[0]
