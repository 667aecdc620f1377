"""nbgrader in a course folder: its settings, its secret, and its steps without the noise."""

import os
import re
import secrets
import sys
import warnings
from pathlib import Path
from typing import Any

from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from llmcourse.course import CourseError

SECRET = ".course_secret"
DATA = "data"  # the folder of an assignment whose files go to the learners with the notebook


class GradingError(CourseError):
    """A step of nbgrader that failed, in one line."""


def salt(course: Path) -> str:
    """Return the secret that seeds the hidden checks of this course, made on first use.

    It lies in `.course_secret`, readable by its owner only, and never in version control.
    """
    path = course / SECRET
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        text = path.read_text(encoding="utf-8").strip()
        if not text:
            raise CourseError(f"{path} is empty: delete it, and a new one is made") from None
        return text
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(16) + "\n")
    return path.read_text(encoding="utf-8").strip()


def not_released(source: Path) -> list[str]:
    """Return the names in `source`/NN_slug/ that stay behind: all but notebooks and data/.

    nbgrader copies whatever lies beside a notebook; a paired .md would give the solution away.
    """
    names = {p.name for p in source.glob("[0-9][0-9]_*/*") if p.suffix != ".ipynb"} - {DATA}
    return sorted(names | {".ipynb_checkpoints", "__pycache__", "*.pyc", "feedback", ".*"})


def settings(course: Path) -> Config:
    """Return what nbgrader_config.py in the folder `course` sets."""
    if not (course / "nbgrader_config.py").is_file():
        raise CourseError(f"{course} has no nbgrader_config.py: run this in the course folder")
    return PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()


def use_own_tools() -> None:
    """Put this environment's programs first: nbgrader calls `alembic` by name."""
    own = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if own not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([own, path])


def api(course: Path) -> Any:
    """Return nbgrader's API for the folder `course`, silent, with its own exchange.

    Raises CourseError where nbgrader is not installed.
    """
    use_own_tools()
    try:
        from nbgrader.apps.api import NbGraderAPI
        from sqlalchemy.exc import SAWarning
    except ImportError:
        raise CourseError("nbgrader is missing: pip install -e '.[grade]'") from None
    warnings.filterwarnings("ignore", category=SAWarning)
    config = settings(course)
    config.CourseDirectory.root = str(course)
    _use_exchange(course, config)
    return NbGraderAPI(config=config)


def _use_exchange(course: Path, config: Config) -> None:
    """The exchange that this machine's or this course's settings name, else one of its own."""
    from nbgrader.apps import NbGrader

    known = NbGrader()
    known.log.setLevel("ERROR")  # that there are none is no news
    known.load_config_file()  # the system's, the user's
    merged = known.config.copy()
    merged.merge(config)
    if "root" not in merged.Exchange:
        own = course / "exchange"
        merged.Exchange.update(root=str(own), cache=str(own / "cache"))
        own.mkdir(exist_ok=True)
        own.chmod(0o777)
    config.Exchange.update(merged.Exchange)


def must(result: dict[str, Any], doing: str) -> None:
    """Raise GradingError with nbgrader's own reason when one of its steps failed."""
    if not result["success"]:
        raise GradingError(f"{doing} failed: {reason(result)}")


def reason(result: dict[str, Any]) -> str:
    """Return the most telling line of what nbgrader logged."""
    lines = (result.get("log", "") + "\n" + result.get("error", "")).splitlines()
    errors = [
        line for line in lines if re.match(r"\w*(Error|Exception|Entry|Invalid)\w*: ", line)
    ]
    said = [line for line in lines if line.startswith("[ERROR]")]
    return (errors or said or lines or ["no reason given"])[0].strip()


def collect(api: Any, name: str) -> None:
    """Fetch what was handed in through the exchange. Raises GradingError."""
    _by_exchange(api.collect(name), f"collecting {name}", api)


def work(api: Any, folder: str, name: str, files: str) -> set[Path]:
    """The folders of learners' work on an assignment in which there are such files."""
    root = Path(api.coursedir.format_path(folder, ".", "."))
    return {path.parent for path in root.glob(f"*/{name}/{files}")}


def hand_out(api: Any, name: str) -> None:
    """Feedback through the exchange, to all whose work came from there; the rest is named."""
    from nbgrader.utils import temp_attrs

    folder, keys = api.coursedir.feedback_directory, ("timestamp.txt", "submission_secret.txt")
    pages = work(api, folder, name, "*.html")
    other = sorted(p.parent.name for p in pages if not all((p / k).is_file() for k in keys))
    left_out = ",".join(filter(None, [api.coursedir.student_id_exclude, *other]))
    with temp_attrs(api.coursedir, student_id_exclude=left_out):
        _by_exchange(api.release_feedback(name), f"handing out feedback for {name}", api)
    if other:
        more = f" and {len(other) - 10} more" if len(other) > 10 else ""
        raise GradingError(
            f"no feedback was handed out to {', '.join(other[:10])}{more}: their work did not "
            f"come through the exchange; give them their pages, feedback/LEARNER/{name}"
        )


def _by_exchange(result: dict[str, Any], doing: str, api: Any) -> None:
    """As `must`; in plain words where nbgrader takes the teacher for a learner."""
    root, said = api.config.Exchange.root, "" if result["success"] else reason(result)
    if "Course not found" in said:
        raise GradingError(
            f"{doing} failed: nobody handed in through the exchange {root} yet. Release there "
            "with nbgrader release_assignment, or put the work into submitted/ yourself"
        )
    if "Unwritable directory" in said:
        raise GradingError(
            f"{doing} failed: the exchange {root} is missing or closed to you: make that "
            "folder, open to everyone (mode 0777), or name another in nbgrader_config.py"
        )
    must(result, doing)
