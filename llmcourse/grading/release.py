"""What learners get, made from the notebooks with solutions: solutions/ -> exercises/.

The same sources give the same bytes. Nothing is written that the linter refuses or that holds
a line of a solution or of a hidden test, and nothing goes along but the notebook and `data/`.
"""

import shutil
import tempfile
from pathlib import Path

from llmcourse import notebooks
from llmcourse.course import CourseError, assignments
from llmcourse.grading import leaks, lint, stock


class ReleaseError(CourseError):
    """The release would be wrong; the text says where, one line for each reason."""


def make(root: Path) -> dict[Path, bytes]:
    """Return the release of the course folder `root`: path below exercises/ -> content.

    Raises ReleaseError when a source breaks a rule or the release would give something away.
    The course's own gradebook is not touched.
    """
    source = root / "solutions"
    todo = assignments(source)
    paths = [one.notebook(source) for one in todo]
    _refuse([f"{path}: {fault}" for path in paths for fault in lint.check(path)])
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        course = Path(folder).resolve()
        shutil.copytree(source, course / "solutions")
        shutil.copy(root / "nbgrader_config.py", course)
        if todo:
            api = stock.api(course)
            for one in todo:
                made = api.generate_assignment(one.name)
                stock.must(made, f"generating {one.name}")
        release = course / "exercises"
        for one in todo:
            _bring_into_form(one.notebook(release))
        _refuse([str(leak) for leak in leaks.check(root, release)])
        files = [p for p in sorted(release.rglob("*")) if p.is_file()]
        return {p.relative_to(release): p.read_bytes() for p in files}


def _bring_into_form(path: Path) -> None:
    path.write_text(
        notebooks.format_notebook(path.read_text(encoding="utf-8")), encoding="utf-8"
    )


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise ReleaseError("no release, because:\n  " + "\n  ".join(dict.fromkeys(reasons)))


def differences(files: dict[Path, bytes], target: Path) -> list[str]:
    """Return how the folder `target` differs from the release `files`, one line a file."""
    there = {
        p.relative_to(target)
        for p in target.rglob("*")
        if p.is_file() and ".ipynb_checkpoints" not in p.parts
    }
    changed = [p for p in files if p in there and (target / p).read_bytes() != files[p]]
    return [
        *(f"new      {p}" for p in sorted(set(files) - there)),
        *(f"changed  {p}" for p in sorted(changed)),
        *(f"gone     {p}" for p in sorted(there - set(files))),
    ]


def write(files: dict[Path, bytes], target: Path) -> list[str]:
    """Make `target` hold exactly the release `files`; return what changed."""
    changes = differences(files, target)
    for path, content in files.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_file() or place.read_bytes() != content:
            place.write_bytes(content)
    for line in changes:
        kind, _, name = line.partition(" ")
        if kind == "gone":
            (target / name.strip()).unlink()
    for folder in sorted((p for p in target.rglob("*") if p.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return changes
