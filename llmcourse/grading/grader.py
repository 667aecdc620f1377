"""One process that grades submissions one after another, and a pool of such processes.

What a grader needs comes with the job, and what it found goes back: it opens no gradebook and
reads no course folder. So it can run on this machine or on another.
"""

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, cast

from llmcourse.course import CourseError
from llmcourse.grading.sandbox import Limits, SandboxError

TRIES = 3  # graders that a submission may bring down, before it is set aside
LONGEST = 200  # characters of a reason
MOST_VALUES = 500_000  # in a file's JSON: as objects of nbformat each may take a kilobyte
MOST_CELLS = 10_000
MEMORY = 4 * 2**30  # bytes for a grader; the sandbox and the examiner have limits of their own


@dataclass(frozen=True)
class Job:
    """A notebook that was handed in, and all that grading it takes.

    key: tells it from the others of a run. text: the file. cells, kernelspec: its release's
    (restore.Template). data: name -> bytes of the assignment's files. salt: of hidden inputs.
    """

    key: str
    text: bytes
    cells: tuple[dict[str, Any], ...]
    kernelspec: str | None
    data: dict[str, bytes]
    salt: str
    limits: Limits = field(default_factory=Limits)
    sandboxed: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a job: the graded notebook, or why there is none.

    notes: what was put back, and which limit the learner's code ran into.
    broken: the grader's fault, not the submission's: worth another try.
    """

    key: str
    notebook: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    broken: bool = False


def grade(job: Job) -> Outcome:
    """Grade one job in this process. Raises CourseError where no sandbox can be had."""
    import nbformat

    from llmcourse.grading import execute, restore

    os.environ["LLMCOURSE_SALT"] = job.salt
    start = time.monotonic()
    try:
        nb = read(job.text)
        restore.restore(nb, restore.Template(job.cells, job.kernelspec))
        if job.kernelspec:
            nb.metadata["kernelspec"] = nbformat.from_dict(json.loads(job.kernelspec))
    except NotANotebook as error:
        return Outcome(job.key, why=str(error))
    sandbox = _sandbox(job, nb)
    try:
        ended = execute.execute(nb, sandbox, job.limits)
    except SandboxError as error:
        execute.stop()
        return Outcome(job.key, why=str(error), broken=True)
    notes = [*restore.notes(nb), *([f"ended early: {ended}"] if ended else [])]
    text = nbformat.writes(nb)
    return Outcome(job.key, text, notes=tuple(notes), seconds=time.monotonic() - start)


def _sandbox(job: Job, nb: Any) -> Any:
    """The warm sandbox. One that cannot start is tried once more: it may have been chance."""
    from llmcourse.grading import execute

    where, modules = _unpacked(job.data), execute.allowed(nb)
    with contextlib.suppress(SandboxError):
        return execute.running(where, modules, sandboxed=job.sandboxed)
    return execute.running(where, modules, sandboxed=job.sandboxed)


class NotANotebook(CourseError):  # noqa: N818, what it is
    """A file that no grader can make sense of; the text says why, for whoever handed it in."""


def read(raw: bytes) -> Any:
    """The notebook in a file, whatever wrote it. Raises NotANotebook."""
    content = _json(raw)
    if not isinstance(content, dict) or not isinstance(content.get("nbformat"), int):
        raise NotANotebook("the file is JSON, but no notebook")
    try:
        bare = _bare(content)
        if b"\\ud" in raw.lower():  # halves of characters, which no other file can hold
            whole = json.dumps(bare, ensure_ascii=False).encode("utf-8", "replace")
            bare = json.loads(whole)
        return _notebook(bare)
    except (MemoryError, NotANotebook):
        raise
    except Exception as error:  # each version of the format has its own ways to be wrong
        reason = str(error).splitlines()[0][:LONGEST] if str(error) else type(error).__name__
        raise NotANotebook(f"the notebook is damaged: {reason}") from None


# A string, the beginning of a list or an object, or a number or name; never two ways to match.
VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[^\s,:\[\]{}"]++', re.S)


def _json(raw: bytes) -> Any:
    """What the file holds; counted before any of it becomes an object."""
    if next(islice(VALUE.finditer(raw), MOST_VALUES, None), None):
        raise NotANotebook(
            f"the file is not JSON as a notebook has it: more than {MOST_VALUES} values. Large "
            "outputs? Clear them and hand in again"
        )
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise NotANotebook("the file is not text in UTF-8") from None
    except (ValueError, RecursionError):
        raise NotANotebook("the file is not JSON: was it saved only in part?") from None


def _bare(content: dict[str, Any]) -> dict[str, Any]:
    """Only what grading reads: what editors add, or a learner, may be of any size and form."""
    numbers = {n: v for n, v in content.items() if n.startswith("nbformat")}
    bare: dict[str, Any] = {n: v for n, v in numbers.items() if isinstance(v, int)}
    bare["metadata"] = {}
    if "cells" in content:
        bare["cells"] = _bare_cells(content["cells"])
    if "worksheets" in content:  # before version 4
        bare["worksheets"] = [
            {"cells": _bare_cells(sheet["cells"]), "metadata": {}}
            for sheet in content["worksheets"]
        ]
    return bare


CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # as nbformat has it


def _bare_cells(cells: Any) -> list[dict[str, Any]]:
    if not isinstance(cells, list):
        raise TypeError("it has no list of cells")
    if len(cells) > MOST_CELLS:
        raise NotANotebook(
            f"the notebook has {len(cells)} cells; at most {MOST_CELLS} are graded"
        )
    return [_bare_cell(cell) for cell in cells]


def _bare_cell(cell: Any) -> dict[str, Any]:
    """A cell's kind, text, name, and images in its text; no output, as it will be run."""
    if not isinstance(cell, dict):
        raise TypeError("a cell is no object")
    bare: dict[str, Any] = {"metadata": {}}
    for name in ("cell_type", "id", "language", "level"):
        if isinstance(cell.get(name), str | int):
            bare[name] = cell[name]
    own = bare.pop("id", None)
    if isinstance(own, str) and CELL_ID.fullmatch(own):  # or it will have another
        bare["id"] = own
    bare |= {name: _joined(cell[name]) for name in ("source", "input") if name in cell}
    kind, meta = cell.get("cell_type"), cell.get("metadata")
    info = meta.get("nbgrader") if isinstance(meta, dict) else None
    if isinstance(info, dict) and isinstance(info.get("grade_id"), str):
        bare["metadata"] = {"nbgrader": {"grade_id": info["grade_id"]}}
    if kind == "code":
        bare |= {"outputs": [], "execution_count": None}
    elif isinstance(cell.get("attachments"), dict):
        bare["attachments"] = {
            name: {mime: _joined(x) for mime, x in image.items()}
            for name, image in cell["attachments"].items() if isinstance(image, dict)
        }  # fmt: skip
    return bare


def _joined(text: Any) -> str:
    """A text that may be in lines."""
    if not isinstance(text, str | list):
        raise TypeError("a cell's text is no text")
    return "".join(map(str, text))


def _notebook(content: dict[str, Any]) -> Any:
    """The notebook in the present version of the format. Raises what nbformat raises."""
    import nbformat

    if content["nbformat"] < 4:
        content = nbformat.versions[content["nbformat"]].to_notebook_json(content)
    nb = nbformat.convert(nbformat.from_dict(content), 4)
    nb.nbformat_minor = max(nb.nbformat_minor, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nb = nbformat.validator.normalize(nb)[1]  # gives cells the ids they lack
    nbformat.validate(nb)
    return nb


_data: dict[str, Path] = {}


def _unpacked(files: dict[str, bytes]) -> Path:
    """A folder with the files; the same for the same files."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    if digest not in _data:
        folder = Path(tempfile.mkdtemp(prefix="assignment-")) / "data"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        _data[digest] = folder
    return _data[digest]


class Pool(Protocol):
    """Something that grades many jobs."""

    def __call__(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """The outcomes, in the order in which they come."""


def serve(handle: int, folder: str) -> None:
    """The life of a grader process: jobs come and outcomes go by the socket `handle`.

    folder: for its temporary files; it goes with the process, also when whoever asked is gone.
    """
    sys.modules.setdefault("rfc3987_syntax", cast(Any, None))  # a second, for URLs' grammar
    _limit_memory()
    tempfile.tempdir = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    pipe: Connection[Any, Any] = Connection(handle)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job = pipe.recv()
            try:
                answer: Outcome | CourseError = grade(job)
            except CourseError as error:
                answer = error
            except Exception as error:  # ours, as what is the learner's cannot raise here
                why = f"the grader failed: {type(error).__name__}: {error}"[:LONGEST]
                answer = Outcome(job.key, why=why, broken=True)
            pipe.send(answer)


def _limit_memory() -> None:
    """A notebook that takes too much fails, and does not take the machine along.

    The soft limit alone: the sandbox and the examiner, which this process starts, set theirs.
    """
    import resource  # not on Windows, where `status` and `export` still work

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


class Grader:
    """A grader process, started when it is first given a job, and again when it has died."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.pipe: Connection[Any, Any] | None = None
        self.until = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def give(self, job: Job) -> None:
        """Begin a job; `pipe` becomes ready when it is done, or the process is gone."""
        self.job, self.until = job, time.monotonic() + 3 * job.limits.wall + 240
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self.pipe is not None
        with contextlib.suppress(OSError):  # it died just now; `take` finds that out
            self.pipe.send(job)

    def _start(self) -> None:
        self.stop()
        ours, theirs = socket.socketpair()
        self._folder = tempfile.mkdtemp(prefix="grader-")
        given = f"{theirs.fileno()}, {self._folder!r}"
        start = f"from llmcourse.grading import grader; grader.serve({given})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is the coordinator's
        )  # fmt: skip
        theirs.close()
        self.pipe = Connection(ours.detach())

    def take(self) -> Outcome:
        """The outcome of the job at hand. Raises CourseError where no sandbox can be had."""
        assert self.job is not None
        late, key, self.job = self.is_late, self.job.key, None
        try:
            if self.pipe is None:
                raise EOFError
            outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.stop()
            why = "grading it took too long" if late else "the process that grades it died"
            return Outcome(key, why=why, broken=True)
        if isinstance(outcome, CourseError):
            raise outcome
        assert isinstance(outcome, Outcome)
        return outcome

    @property
    def is_late(self) -> bool:
        return self.job is not None and time.monotonic() > self.until

    def stop(self) -> None:
        """End the process, and with it what it grades."""
        if self._process is not None and self.pipe is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the examiner too
            self._process.wait()
            self.pipe.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process = self.pipe = None


class LocalPool:
    """Graders on this machine, as many as given or as there are cores. A context manager."""

    def __init__(self, workers: int | None = None) -> None:
        workers = len(os.sched_getaffinity(0)) if workers is None else workers
        if workers < 1:
            raise CourseError(f"workers: got {workers}, needs at least 1")
        self.graders = [Grader() for _ in range(workers)]

    def __enter__(self) -> "LocalPool":
        return self

    def __exit__(self, *_: object) -> None:
        for grader in self.graders:
            grader.stop()

    def __call__(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Outcomes as they come; a job whose grader dies is tried again, a few times."""
        waiting, tries, again = iter(jobs), dict[str, int](), list[Job]()
        while True:
            for grader in self.graders:
                job = None if grader.job else again.pop() if again else next(waiting, None)
                if job is not None:
                    grader.give(job)
            busy = [g for g in self.graders if g.job]
            if not busy:
                return
            for grader in self._done(busy):
                job = grader.job
                assert job is not None
                outcome = grader.take()
                tries[job.key] = tries.get(job.key, 0) + 1
                if outcome.broken and tries[job.key] < TRIES:
                    again.append(job)
                else:
                    yield outcome

    @staticmethod
    def _done(busy: list[Grader]) -> list[Grader]:
        for grader in busy:
            if grader.is_late:
                grader.stop()
        ready = wait([g.pipe for g in busy if g.pipe], timeout=1.0)
        return [g for g in busy if g.pipe is None or g.pipe in ready]
