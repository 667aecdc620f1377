"""One process that grades submissions one after another, and a pool of such processes.

What a grader needs comes with the job, and what it found goes back: it opens no gradebook and
reads no course folder. So it can run on this machine or on another.
"""

import atexit
import contextlib
import hashlib
import json
import os
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
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol, cast

from llmcourse.course import CourseError
from llmcourse.grading.sandbox import Limits, SandboxError

TRIES = 3  # graders that a submission may bring down, before it is set aside
LONGEST = 200  # characters of a reason


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
    import nbformat

    try:
        content = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise NotANotebook("the file is not text in UTF-8") from None
    except (ValueError, RecursionError):
        raise NotANotebook("the file is not JSON: was it saved only in part?") from None
    if b"\\ud" in raw.lower():  # halves of characters, which no other file can hold
        whole = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
        content = json.loads(whole)
    if not isinstance(content, dict) or not isinstance(content.get("nbformat"), int):
        raise NotANotebook("the file is JSON, but no notebook")
    try:
        if content["nbformat"] < 4:
            content = nbformat.versions[content["nbformat"]].to_notebook_json(content)
        nb = nbformat.convert(nbformat.from_dict(content), 4)
        if not isinstance(nb.cells, list):
            raise TypeError("it has no list of cells")
        for cell in nb.cells:
            _mend(cell)
        nb.nbformat_minor = max(nb.nbformat_minor, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nb = nbformat.validator.normalize(nb)[1]  # gives cells the ids they lack
        nbformat.validate(nb)
    except Exception as error:  # each version of the format has its own ways to be wrong
        reason = str(error).splitlines()[0][:LONGEST] if str(error) else type(error).__name__
        raise NotANotebook(f"the notebook is damaged: {reason}") from None
    return nb


def _mend(cell: Any) -> None:
    """What editors write that the format does not allow, where nothing is lost."""
    cell.setdefault("metadata", type(cell)())
    if isinstance(cell.get("source"), list):
        cell["source"] = "".join(map(str, cell["source"]))
    if cell.get("cell_type") == "code":
        cell["outputs"], cell["execution_count"] = [], None
        cell.pop("attachments", None)  # a retyped cell's


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
