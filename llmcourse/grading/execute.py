"""Split execution in nbgrader's pipeline, in place of its Execute."""

import ast
import atexit
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Float, Integer

from llmcourse.grading import restore, stock
from llmcourse.grading.examiner import Part, error_output, examine
from llmcourse.grading.sandbox import Limits, Sandbox, Unprotected

NOT_GRADED = "NotGraded"  # the name of the error that a check shows until it has run to its end


class SplitExecute(NbGraderPreprocessor):
    """Runs learners' cells in the sandbox and the locked ones outside (grading.examiner)."""

    sandboxed = Bool(True, help="False: no bubblewrap; for a learner's own work").tag(
        config=True
    )
    memory = Integer(Limits.memory, help="bytes for one submission").tag(config=True)
    processes = Integer(Limits.processes, help="processes and threads").tag(config=True)
    cpu = Float(Limits.cpu, help="seconds on a processor for one submission").tag(config=True)
    wall = Float(Limits.wall, help="seconds for one submission").tag(config=True)
    timeout = Float(Limits.cell, help="seconds for one cell, or call of a function").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Execute the notebook; raises SandboxError where the sandbox cannot be had."""
        course = CourseDirectory(config=self.config)
        assignment = resources["nbgrader"]["assignment"]
        source = Path(course.format_path(course.source_directory, ".", assignment))
        sandbox = running(source / stock.DATA, allowed(nb), sandboxed=self.sandboxed)
        execute(nb, sandbox, self.limits)
        return nb, resources

    @property
    def limits(self) -> Limits:
        """What the course's settings let a submission take."""
        return Limits(
            memory=self.memory, processes=self.processes, cpu=self.cpu, wall=self.wall,
            cell=self.timeout,
        )  # fmt: skip


def execute(nb: NotebookNode, sandbox: Sandbox, limits: Limits) -> str:
    """Run a restored notebook in two parties, and put into it what came out.

    Every check says "not graded" until the examiner reports that it ran to its end. Returns why
    the learner's process ended early, or "".
    """
    without = nb.metadata.get(restore.NOTES, {}).get("without score", [])
    parts = []
    for number, cell in enumerate(nb.cells):
        if cell.cell_type != "code":
            continue
        info = cell.metadata.get("nbgrader", {})
        graded = bool(info.get("grade")) and not info.get("solution")
        text = "this check did not run to its end"
        if graded:
            cell.outputs = _nodes([error_output(NOT_GRADED, text)])
        if graded and info["grade_id"] in without:
            text = (
                "this check was not in its place in the notebook that was handed in: 0 points"
            )
            cell.outputs = _nodes([error_output("Restored", text)])
        else:
            parts.append(Part(str(number), cell.source, bool(info.get("locked")), graded))
    result = examine(parts, sandbox, limits)
    for key, outputs in result.outputs.items():
        nb.cells[int(key)].outputs = _nodes(outputs)
    if result.ended:
        nb.metadata[restore.NOTES] = {
            **nb.metadata.get(restore.NOTES, {}),
            "ended": result.ended,
        }
    return result.ended


def _nodes(outputs: Iterable[dict[str, Any]]) -> list[NotebookNode]:
    return [nbformat.from_dict(out) for out in outputs]


def allowed(nb: NotebookNode) -> tuple[str, ...]:
    """The modules of this package that an assignment's checks let learners call."""
    modules: set[str] = set()
    for cell in nb.cells:
        info = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and info.get("locked"):
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.keyword) and node.arg == "allow":
                    modules |= set(ast.literal_eval(node.value))
    return tuple(sorted(modules))


_running: dict[tuple, Sandbox] = {}  # one at most: each holds a few hundred MB


def running(data: Path, modules: tuple[str, ...], *, sandboxed: bool = True) -> Sandbox:
    """The sandbox of this process, warm; a new one for another assignment, or when it broke."""
    key = (data, modules, sandboxed)
    if key not in _running or _running[key].broken:
        stop()
        kind = Sandbox if sandboxed else Unprotected
        _running[key] = kind(data, modules).__enter__()
    return _running[key]


@atexit.register
def stop() -> None:
    """End the sandbox of this process, if it has one."""
    while _running:
        _running.popitem()[1].__exit__(None, None, None)
