"""A learner's own copy of the exercises: made once, brought up to date, never overwritten.

`my_work/` holds the copies, `my_work/.release/` the release last seen and, while an edited copy
is older, the release that it was made from.
A copy that equals its release was never edited and follows the next release;
an edited one stays as it is, and the next release is placed beside it.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmcourse.course import Assignment, CourseError, assignments

WORK = "my_work"
NEWS = "@jupyterlab/apputils-extension:announcements"  # asks whether to fetch Jupyter's news
Cell = dict[str, Any]


def prepare(root: Path) -> list[str]:
    """Copy new releases into my_work/ and return what to tell the learner, line by line.

    Nothing that a learner changed is overwritten, moved or removed.
    Raises CourseError when there is nothing to copy or my_work/ cannot be written.
    """
    release, work = root / "exercises", root / WORK
    todo = assignments(release)
    if not todo:
        raise CourseError(
            f"no exercises in {release}: get the course again, or run make exercises"
        )
    lines: list[str] = []
    try:
        if work.exists() and not work.is_dir():
            raise CourseError(f"{work} is a file: move it away, a folder goes there")
        work.mkdir(exist_ok=True)
        for one in todo:
            for line in _prepare_one(one, release, work):
                lines.append(line)
    except OSError as error:
        what = f"{error.filename or work} ({error.strerror})"
        why = f"cannot use {what}: mend that, then run this again"
        raise CourseError("\n".join([why, *lines])) from None
    return lines or [f"{WORK}/ is up to date with the release."]


def _prepare_one(one: Assignment, release: Path, work: Path) -> Iterator[str]:
    for path in sorted((release / one.name).rglob("*")):
        if path.is_file() and ".ipynb_checkpoints" not in path.parts:
            name = path.relative_to(release)
            yield from _prepare_file(path, work / name, work / ".release" / name, work)


def _prepare_file(new: Path, mine: Path, base: Path, work: Path) -> Iterator[str]:
    """Bring one file up to date; `base` is the release that `mine` was copied from."""
    shown = f"{WORK}/{mine.relative_to(work)}"
    if not os.path.lexists(mine):
        others = (
            [p.name for p in mine.parent.glob("*.ipynb")] if mine.suffix == ".ipynb" else []
        )
        kept = f"; {', '.join(sorted(others))} stays as it is" if others else ""
        again = " was not there: a fresh copy" if base.exists() else ": new"
        _write(mine, new.read_bytes())
        yield f"{shown}{again}{kept}"
    elif base.is_file() and base.read_bytes() == new.read_bytes():
        return
    elif _same(mine, new):
        pass
    elif (origin := _origin(mine, base)).is_file() and origin.read_bytes() == new.read_bytes():
        pass  # the newer release was taken back
    elif _same(mine, origin) and _may_replace(mine):
        _write(mine, new.read_bytes())
        yield f"{shown}: updated to the newer release (you had not edited it)"
        yield from _changes(origin, new)
    else:
        yield from _place_beside(new, mine, origin, shown)
        if base.is_file():
            _write(_free_name(base, "older"), base.read_bytes())
    _write(base, new.read_bytes())


def _origin(mine: Path, base: Path) -> Path:
    """Return the release that `mine` was made from: of those kept, the one most alike."""
    texts = set(map(_text, read_cells(mine) or []))
    return min(
        [base, *base.parent.glob(f"{base.stem}_older*{base.suffix}")],
        key=lambda kept: len(set(map(_text, read_cells(kept) or [])) - texts),
    )


def _place_beside(new: Path, mine: Path, base: Path, shown: str) -> Iterator[str]:
    """Write the newer release under a free name and say what it changes."""
    beside = _free_name(mine, "newer")
    content, answers, left = _with_answers(new, mine, base)
    _write(beside, content)
    carried = f" with {answers} of your cells in it" if answers else ""
    yield f"{shown}: there is a newer release; your file is exactly as you left it"
    if mine.suffix == ".ipynb" and read_cells(mine) is None:
        yield f"  {mine.name} cannot be read as a notebook; perhaps it was saved only in part"
    yield f"  {beside.name} beside it is the newer release{carried}"
    if left:
        yield f"  only in {mine.name} are your edits to: {', '.join(left)}"
    yield f"  to go on with that one, rename it to {mine.name} (keep yours under another name)"
    yield from _changes(base, new)


def _free_name(path: Path, word: str) -> Path:
    """Return the first of name_word.x, name_word_2.x, ... that is not taken."""
    number, end = 1, ""
    while os.path.lexists(free := path.with_name(f"{path.stem}_{word}{end}{path.suffix}")):
        number += 1
        end = f"_{number}"
    return free


def _may_replace(path: Path) -> bool:
    """Say whether `path` is a plain file that its owner left writable."""
    return not path.is_symlink() and bool(path.stat().st_mode & 0o200)


def _write(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: an interrupted copy leaves no half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _same(a: Path, b: Path) -> bool:
    """Say whether two files hold the same work: outputs and run counts do not count."""
    if not (a.is_file() and b.is_file()):
        return False
    if a.read_bytes() == b.read_bytes():
        return True
    one, two = read_cells(a), read_cells(b)
    return (
        one is not None and two is not None and list(map(_text, one)) == list(map(_text, two))
    )


def read_cells(path: Path) -> list[Cell] | None:
    """Return the cells of a notebook, or None where there is none that can be read."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            _text(cell), _key(cell)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return list(cells)


def _text(cell: Cell) -> tuple[str, str, str]:
    """Return what a learner can edit in a cell: its type, its source, its attached files."""
    return cell["cell_type"], "".join(cell["source"]), json.dumps(cell.get("attachments") or {})


def _grading(cell: Cell) -> dict[str, Any]:
    return cell.get("metadata", {}).get("nbgrader", {})


def _key(cell: Cell) -> str | None:
    """Return the name under which a cell is found again in another version of its notebook."""
    return _grading(cell).get("grade_id") or cell.get("id")


def _by_key(path: Path) -> dict[str, Cell]:
    return {key: cell for cell in read_cells(path) or [] if (key := _key(cell))}


def _with_answers(new: Path, mine: Path, base: Path) -> tuple[bytes, int, list[str]]:
    """Return the new release with the learner's answers and cells in it.

    Also how many they are, and the names of the cells whose edits are not in it: text and code
    that is not an answer, and answers that are no longer asked for.
    """
    written = read_cells(mine)
    if new.suffix != ".ipynb" or not written:
        return new.read_bytes(), 0, []
    notebook = json.loads(new.read_text(encoding="utf-8"))
    cells, old = notebook["cells"], _by_key(base) or _by_key(new)
    given = [_text(c) for c in [*old.values(), *cells]]
    seen: set[str] = set()
    left: list[str] = []
    count = place = 0
    for cell in written:
        key = _key(cell) or ""
        # JupyterLab gives both halves of a split cell, and a pasted one, the same name.
        again = key in seen
        seen.add(key)
        at = next((i for i, c in enumerate(cells) if _key(c) == key and not again), None)
        if at is not None:
            place = at + 1
            if _text(cell) != _text(old.get(key, cells[at])):
                if _grading(cells[at]).get("solution"):
                    cells[at]["source"], count = cell["source"], count + 1
                else:
                    left.append(key)
        elif key in old and not again:
            left += [key] if _text(cell) != _text(old[key]) else []
        elif _text(cell) not in given:
            cells.insert(place, _own(cell, {c.get("id") for c in cells}))
            count, place = count + 1, place + 1
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    return text.encode(), count, left


def _own(cell: Cell, taken: set[str]) -> Cell:
    """Return a cell that the learner added, as it goes among cells whose ids are `taken`."""
    metadata = {k: v for k, v in cell.get("metadata", {}).items() if k != "nbgrader"}
    new = {"id": uuid.uuid4().hex[:8]} | cell | {"metadata": metadata}
    new |= {"id": uuid.uuid4().hex[:8]} if new["id"] in taken else {}
    return new | ({"outputs": [], "execution_count": None} if "outputs" in cell else {})


def _changes(base: Path, new: Path) -> Iterator[str]:
    """Say cell by cell what the newer release changes."""
    old, fresh = _by_key(base), _by_key(new)
    if not old:
        return
    for key in [*fresh, *(k for k in old if k not in fresh)]:
        if key not in old:
            yield f"    new      {key} ({_kind(fresh[key])})"
        elif key not in fresh:
            yield f"    removed  {key} ({_kind(old[key])})"
        elif _text(fresh[key]) != _text(old[key]) or _kind(fresh[key]) != _kind(old[key]):
            shown = f"; as released: exercises/{new.parent.name}/{new.name}"
            answer = _grading(fresh[key]).get("solution")
            yield f"    changed  {key} ({_kind(fresh[key])}{shown if answer else ''})"


def _kind(cell: Cell) -> str:
    grading = _grading(cell)
    if grading.get("solution"):
        return "your answer"
    if grading.get("grade"):
        return f"check, {grading.get('points', 0):g} points"
    return "text" if cell["cell_type"] == "markdown" else "code"


def open_lab(root: Path, arguments: list[str]) -> int:
    """Open JupyterLab in my_work/ and return its exit status; `arguments` are passed on to it.

    Raises CourseError when JupyterLab is not installed.
    """
    import importlib.util

    if importlib.util.find_spec("jupyterlab") is None:
        raise CourseError("JupyterLab is missing: install it with pip install -e '.[lab]'")
    quiet = [
        f"--ServerApp.root_dir={root / WORK}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--log-level=WARN",  # or what lab says of a newer release scrolls away
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        quiet.append("--allow-root")
    print("JupyterLab opens in your browser; Control-C here stops it.", flush=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    config = root / WORK / ".release" / "jupyter"
    disabled = json.dumps({"disabledExtensions": {NEWS: True}})
    with contextlib.suppress(OSError):  # my_work/ may be read-only
        _write(config / "labconfig" / "page_config.json", disabled.encode())
    configs = os.pathsep.join(
        filter(None, [str(config), os.environ.get("JUPYTER_CONFIG_PATH")])
    )
    env = os.environ | {"PATH": path, "JUPYTER_CONFIG_PATH": configs}
    command = [sys.executable, "-m", "jupyterlab", *quiet, *arguments]
    try:
        return subprocess.call(command, cwd=root / WORK, env=env)
    except KeyboardInterrupt:
        return 0
