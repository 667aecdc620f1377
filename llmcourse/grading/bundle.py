"""What learners get, in one zip file: the exercises, the package, and how to start.

No solutions, no hidden tests, nothing that grades. The same course folder gives the same bytes.
"""

import zipfile
from pathlib import Path

from llmcourse.course import CourseError, assignments
from llmcourse.grading import leaks

FILE = Path("_build") / "student-bundle.zip"
FOLDER = "llmcourse"  # everything in the zip file lies in it
COPIED = ("LICENSE", "constraints.txt", "pyproject.toml")
WITHOUT = ("grading", "__pycache__")  # parts of the package that stay behind
EARLIEST = (1980, 1, 1, 0, 0, 0)  # the one time that every file has; zip knows none before

README = """\
# From GPT-2 to Kimi K3: the exercises

You need Python 3.11.5 or newer (`python3 --version` says which you have) and no GPU.
In this folder, on Linux and macOS:

```bash
python3 -m venv .venv
.venv/bin/python -m pip install -c constraints.txt -e ".[lab]"
.venv/bin/llmcourse lab
```

On Windows:

```powershell
py -m venv .venv
.venv\\Scripts\\python -m pip install -c constraints.txt -e ".[lab]"
.venv\\Scripts\\llmcourse lab
```

The last command copies the exercises into `my_work/` and opens JupyterLab there.
Write your answers in that copy: the cell below each one checks it.
In the terminal, `llmcourse check {number}` runs the checks of exercise {number}.
Hand in the notebook from `my_work/`, under its own name.

The exercises here:

{names}
"""


def make(root: Path) -> dict[str, bytes]:
    """Return path below FOLDER -> content.

    Raises CourseError when it would give something away, or when there is nothing to give.
    """
    found = assignments(root / "exercises")
    if not found:
        raise CourseError("no exercises in exercises/: run make exercises first")
    leaked = leaks.check(root, root / "exercises")
    if leaked:
        raise CourseError("no bundle, because:\n  " + "\n  ".join(map(str, leaked)))
    names = "\n".join(f"- {one.name}" for one in found)
    files = {"README.md": README.format(number=found[0].number, names=names).encode()}
    paths = [root / name for name in COPIED]
    paths += [path for one in found for path in _inside(root / "exercises" / one.name)]
    paths += _inside(root / "llmcourse")
    return files | {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _inside(folder: Path) -> list[Path]:
    """The files in a folder that learners get: nothing hidden, nothing built."""
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        kept = not any(part.startswith(".") or part in WITHOUT for part in parts)
        if kept and path.is_file() and not path.is_symlink():
            found.append(path)
    return found


def write(files: dict[str, bytes], path: Path) -> None:
    """Pack the files, in the order of their names. Raises CourseError where it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as packed:
            for name in sorted(files):
                entry = zipfile.ZipInfo(f"{FOLDER}/{name}", EARLIEST)
                entry.external_attr = 0o644 << 16
                packed.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise CourseError(f"{path} cannot be written ({error.strerror})") from None
