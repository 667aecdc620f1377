"""Feedback that shows a learner's work, scores and messages, and nothing of a hidden test."""

import re
from typing import Any

from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from llmcourse.grading import unpack
from llmcourse.grading.leaks import is_marker, outside, regions, squeeze, uncomment, unwrap

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
        graded = [cell.source for cell in nb.cells if _graded(cell)]
        bare = [uncomment(text) for source in graded for _, text in regions(source)]
        lines = {squeeze(line).rstrip(",") for text in bare for line in text.split("\n")}
        # A line that also stands where everyone reads it is none, nor is one that they typed.
        shown = [outside(c.source) if _locked(c) else c.source for c in nb.cells]
        public = squeeze("\n".join(shown))
        secret = {line for line in lines if len(line) >= 16 and line not in public}
        for cell in nb.cells:
            if _graded(cell):
                self._clean_graded(cell, secret)
            elif cell.cell_type == "code":
                cell.outputs = [_withhold(out, secret) for out in cell.outputs]
        return nb, resources

    def _clean_graded(self, cell: NotebookNode, secret: set[str]) -> None:
        # A marker without its partner: rather too little than a line of a test.
        kept = outside(cell.source).split("\n")
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
    text = re.sub(r"\x1b\[[0-9;]*+m", "", text)
    inner = [unpack.text(raw) for raw in unpack.encoded(text)]
    said = [squeeze(one) for whole in (text, *inner) for one in unwrap(whole)]
    return any(line in one for line in secret for one in said)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _texts(item)] if isinstance(value, list) else []


class NoEmptyComments(NbGraderPreprocessor):
    """Take away the comment "No response.", and with it its entry in the page's contents."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Return the cell, with its comment only if somebody wrote one."""
        info = cell.metadata.get("nbgrader", {})
        if (info.get("comment") or "").strip() in ("", "No response."):
            info.pop("comment", None)
        return cell, resources


# Nothing runs and nothing is loaded, whatever else went wrong; and a phone shows its own width.
HEAD = """
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>"""

# Prompts have no numbers and stand beside nothing. A bar is as high as its text needs: on a
# phone the score comes below the name, not below the bar, where it pushed the code aside.
STYLE = """
<style>
div.prompt { display: none; }
div.nbgrader_cell { margin: 0.7em 0; }
div.nbgrader_cell .panel-heading { height: auto; overflow: hidden; }
div.nbgrader_cell .panel-heading a { color: white; text-decoration: underline; }
#toc a { text-decoration: underline; }
.rendered_html table {
  display: block; max-width: 100%; overflow-x: auto; font-size: 14px; margin-bottom: 10px;
}
.highlight pre, .text_cell_render { overflow-x: auto; }
.rendered_html th, .rendered_html td { padding: 0.2em 0.6em; border: 1px solid #ddd; }
.rendered_html blockquote { font-size: inherit; }
.rendered_html img { max-width: 100%; height: auto; }
div.nbgrader_cell .pull-right { line-height: 25px; }
.output_error pre {
  white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere;
  background: #fdf3f2; border-left: 4px solid #b52b27;
}
@media (max-width: 600px) {
  body > .container, #notebook-container, .panel-body { padding: 4px; }
  h1 { font-size: 24px; }
  h2 { font-size: 20px; }
  .rendered_html blockquote { padding: 0 0 0 8px; }
}
</style>
"""


class FeedbackExporter(HTMLExporter):
    """nbgrader's feedback page, readable without a network, its scores under their names."""

    def from_notebook_node(  # type: ignore[override]  # as nbconvert's own
        self, nb: NotebookNode, resources: Any = None, **kw: Any
    ) -> tuple[str, ResourcesDict]:
        """Return the page, which runs and loads nothing, and its resources."""
        page, resources = super().from_notebook_node(nb, resources, **kw)
        page = re.sub(r"<script\b.*?</script>", "", page, flags=re.I | re.S)
        page = re.sub(r"<link\b[^>]*>", "", page, flags=re.I)
        head, body, rest = page.partition("<body")
        # What the policy blocks is not asked for; a learner's text about it stays.
        page = re.sub(r"@font-face\s*{.*?}", "", head, flags=re.S) + body + rest
        page = page.replace("<head>", "<head>" + HEAD, 1).replace(
            "</head>", STYLE + "</head>", 1
        )
        # The list of scores says which function each of them is for.
        page = re.sub(r'(<a href="#([\w-]+?)(?:-check)?">)Test cell(?=</a>)', r"\1\2", page)
        named = r'(<a href="#comment-([\w-]+)">)Comment(?=</a>)'
        return re.sub(named, r"\1Comment on \2", page), resources
