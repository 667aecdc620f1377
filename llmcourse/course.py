"""Where things are in a course folder, found from its layout alone."""

import re
from dataclasses import dataclass
from pathlib import Path


class CourseError(Exception):
    """Something a user can mend; its text is one line that says how."""


@dataclass(frozen=True)
class Assignment:
    """One exercise: its folder `NN_slug` holds the notebook `slug.ipynb`."""

    name: str

    @property
    def number(self) -> str:
        """Two digits: the number of its chapter."""
        return self.name.partition("_")[0]

    @property
    def slug(self) -> str:
        """The name without its number."""
        return self.name.partition("_")[2]

    def notebook(self, tree: Path) -> Path:
        """Path of the notebook in `tree`: solutions/, exercises/ or my_work/."""
        return tree / self.name / f"{self.slug}.ipynb"


def find_root(start: Path | None = None) -> Path:
    """Return the course folder that holds `start` (default: the working directory).

    Raises CourseError when no folder above `start` is one.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "exercises").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise CourseError(
        f"{start} is not in a course folder: change to the folder that has exercises/ in it"
    )


def assignments(tree: Path) -> list[Assignment]:
    """Return the assignments in `tree` (folders NN_slug with slug.ipynb), in order."""
    found = (Assignment(p.name) for p in sorted(tree.glob("[0-9][0-9]_*")))
    return [a for a in found if a.notebook(tree).is_file()]


def looked_for(name: str) -> Path:
    """Where grading looks for a learner's notebook of the assignment `name`."""
    return Assignment(name).notebook(Path("submitted", "LEARNER"))


def find(wanted: str, tree: Path) -> Assignment:
    """Return the assignment that `wanted` names: "2", "02", "gpt2" or "02_gpt2".

    Raises CourseError with the names there are.
    """
    key = wanted.strip().strip("/")
    key = key.zfill(2) if re.fullmatch(r"\d", key) else key
    known = assignments(tree)
    for one in known:
        if key in (one.number, one.slug, one.name):
            return one
    names = ", ".join(a.name for a in known) or "none yet"
    raise CourseError(f"no exercise {wanted!r}; there are: {names}")
