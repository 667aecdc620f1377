"""Split execution of a whole notebook, in this process's sandbox."""

import ast
import atexit
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from llmcourse.grading import restore
from llmcourse.grading.examiner import Part, error_output, examine
from llmcourse.grading.sandbox import Limits, Sandbox, Unprotected

NOT_GRADED = "NotGraded"  # the name of the error that a check shows until it has run to its end


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
    found = {"ended": result.ended, "cut": result.cut}
    known = nb.metadata.get(restore.NOTES, {})
    nb.metadata[restore.NOTES] = {**known, **{what: x for what, x in found.items() if x}}
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
