"""Runs a learner's notebook in the terminal and says what each of its checks said."""

import atexit
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmcourse.course import Assignment, CourseError
from llmcourse.lab import WORK, read_cells

SECONDS = 60  # a cell of an exercise takes less than five


def report(one: Assignment, root: Path, path: Path | None = None) -> int:
    """Run the checks of assignment `one` on a copy of it and print a line for each.

    `path` is the copy (default: the one in my_work/). The checks are the release's, also where
    the copy changed or lost them. Returns 0 when all pass, 1 when one does not; raises
    CourseError when there is no copy or it cannot be read.
    """
    mine = one.notebook(root / WORK)
    path = path or mine
    if not path.is_file():
        raise CourseError(
            f"there is no {WORK}/{one.name}/{mine.name}: make lab puts it there; "
            "or name your copy behind the number"
            if path == mine
            else f"there is no notebook {path}"
        )
    notebook, names = _with_released_checks(
        _read(path), _read(one.notebook(root / "exercises"))
    )
    print(f"{one.name}: {path}")
    width = max(map(len, names.values()), default=0)
    passed = 0
    for cell, error in _run(notebook, path.parent):
        name = names.get(_grade_id(cell))
        if name is None:
            if error:
                print(
                    _row(
                        "error", f"in your cell {_grade_id(cell) or cell.get('id', '')}", error
                    )
                )
            continue
        passed += not error
        if "is not written yet" in error:
            print(f"  --     {name:<{width}}  not written yet")
        else:
            print(_row("wrong" if error else "ok", name, error))
        sys.stdout.flush()
    print(f"{passed} of {len(names)} checks pass.")
    return int(passed < len(names))


def _row(state: str, name: str, message: str) -> str:
    return f"  {state:<5}  {name}" + (
        f"\n{textwrap.indent(message, ' ' * 9)}" if message else ""
    )


def _read(path: Path) -> Any:
    try:
        import nbformat
    except ImportError:
        raise CourseError("nbformat is missing: pip install -e '.[lab]'") from None
    if not os.access(path, os.R_OK):
        raise CourseError(f"{path} may not be read: change its permissions")
    if read_cells(path) is None:
        raise CourseError(f"{path} cannot be read as a notebook; was it saved only in part?")
    notebook = nbformat.from_dict(json.loads(path.read_text(encoding="utf-8")))
    for part in (notebook, *notebook.cells):
        part.setdefault("metadata", nbformat.NotebookNode())
    return notebook


def _grading(cell: Any) -> dict[str, Any]:
    return dict(cell.metadata.get("nbgrader", {}))


def _grade_id(cell: Any) -> str:
    return str(_grading(cell).get("grade_id", ""))


def _with_released_checks(mine: Any, release: Any) -> tuple[Any, dict[str, str]]:
    """Return the learner's notebook with the release's locked cells, and {check: name}."""
    locked = {_grade_id(c): c for c in release.cells if _grading(c).get("locked")}
    there = set()
    for cell in mine.cells:
        cell.source = "".join(cell.source)
        if (key := _grade_id(cell)) in there:
            cell.metadata.pop("nbgrader")  # pasted, or split off: a cell of the learner's own
        elif key in locked:
            there.add(key)
            cell.source, cell.cell_type = "".join(locked[key].source), locked[key].cell_type
    for key, cell in locked.items():
        if key not in there:
            cell.source = "".join(cell.source)
            mine.cells.append(cell)
    checks = [key for key, cell in locked.items() if _grading(cell).get("grade")]
    return mine, {key: re.sub(r"-check$", "", key) for key in checks}


def _run(notebook: Any, folder: Path) -> Iterator[tuple[Any, str]]:
    """Run the code cells in a fresh kernel; yield each with its error's text, "" when none."""
    client = _client(notebook, folder)
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            cell.outputs = []
            try:
                client.execute_cell(cell, index)
            except Exception as error:  # the kernel is gone: no later cell can run
                yield cell, f"the kernel stopped here: {type(error).__name__}; out of memory?"
                return
            yield cell, _error(cell)


def _client(notebook: Any, folder: Path) -> Any:
    try:
        from nbclient import NotebookClient
        from traitlets.config import Config
    except ImportError:
        raise CourseError("nbclient is missing: pip install -e '.[lab]'") from None
    return NotebookClient(
        notebook,
        config=Config({"KernelManager": private_sockets()}),
        timeout=SECONDS,
        allow_errors=True,
        interrupt_on_timeout=True,
        error_on_timeout={
            "ename": "TimeoutError", "evalue": f"stopped after {SECONDS} s", "traceback": [""]
        },
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip


def private_sockets() -> dict[str, str]:
    """Return KernelManager's settings for sockets in a fresh private folder.

    No open port, and no warning about one. Windows has no such sockets: {} there.
    """
    if sys.platform == "win32":
        return {}
    folder = tempfile.mkdtemp(prefix="kernel-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"transport": "ipc", "ip": f"{folder}/k"}


def _error(cell: Any) -> str:
    """Return what went wrong in a cell: a check's message as it is, another error by class."""
    for out in cell.outputs:
        if out.output_type == "error":
            plain = re.sub(r"\x1b\[[0-9;]*m", "", out.evalue)
            return plain if out.ename == "CheckFailed" else f"{out.ename}: {plain}"
    return ""
