"""Grading on many machines: batches go to the workers of a Dask cluster.

Workers need this package, bubblewrap, and one thread each (`dask worker --nthreads 1`); what is
graded travels with the task. They never see the gradebook: this process alone writes to it.
"""

import socket
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from llmcourse.course import CourseError
from llmcourse.grading.grader import Job, LocalPool, Outcome

ANSWER = 20  # seconds for the scheduler
WAIT = 60  # seconds for the first worker
AHEAD = 2  # jobs sent for each thread of the cluster, so that memory stays flat
_here = threading.local()


def grade_there(job: Job) -> Outcome:
    """Grade a job in a process beside this Dask worker, which stays for the next ones."""
    if not hasattr(_here, "pool"):
        _here.pool = LocalPool(1)
    try:
        [outcome] = _here.pool([job])
    except CourseError as error:
        raise CourseError(f"on {socket.gethostname()}: {error}") from None
    return outcome


class ClusterPool:
    """The workers of a scheduler. Use it as a context manager.

    address: tls://host:port. ca, cert, key: files of the cluster's TLS, which everybody in it
    shares. Raises CourseError for a scheduler without TLS, one that does not answer, and one
    without workers.
    """

    def __init__(self, address: str, *, ca: Path, cert: Path, key: Path) -> None:
        if not address.startswith("tls://"):
            raise CourseError(
                f"scheduler: got {address}, needs tls://: an open one runs anyone's code"
            )
        for name, path in {"ca": ca, "cert": cert, "key": key}.items():
            if not path.is_file():
                raise CourseError(f"tls {name}: there is no file {path}")
        self.address, self.files = address, (ca, cert, key)

    def __enter__(self) -> "ClusterPool":
        import dask
        from distributed import Client, Security

        ca, cert, key = map(str, self.files)
        security = Security(
            tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True
        )
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
        try:
            self.client: Any = Client(
                self.address, security=security, timeout=ANSWER, set_as_default=False
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise CourseError(f"no scheduler answers at {self.address} ({error})") from None
        try:
            self.client.wait_for_workers(1, timeout=WAIT)
        except TimeoutError:
            self.client.close()
            raise CourseError(f"the cluster at {self.address} has no worker") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def __call__(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Outcomes as they come. Dask gives what was on a worker that died to another.

        Which of the jobs on it was to blame is not known, so those that saw several die are
        tried again at the end, each alone; one that kills alone too is reported.
        """
        suspects: list[Job] = []
        for job, outcome in self._graded(iter(jobs)):
            if outcome is None:
                suspects.append(job)
            else:
                yield outcome
        for job in suspects:
            for _, outcome in self._graded(iter([job])):
                yield outcome or Outcome(job.key, why="every worker that it was given to died")

    def _graded(self, waiting: Iterator[Job]) -> Iterator[tuple[Job, Outcome | None]]:
        """Jobs and what became of them; None where one worker after the other died."""
        from distributed import as_completed

        given: dict[str, Job] = {}
        done = as_completed([], loop=self.client.loop)
        self._send(waiting, given, done)
        for future in done:
            yield given.pop(future.key), self._outcome(future)
            future.release()
            self._send(waiting, given, done)

    def _send(self, waiting: Iterator[Job], given: dict[str, Job], done: Any) -> None:
        """As many as keep every worker busy, those that joined meanwhile too."""
        try:
            most = AHEAD * max(1, sum(self.client.nthreads().values()))
        except Exception:  # it depends on what the client was just doing
            raise self._gone() from None
        for job in islice(waiting, max(0, most - len(given))):
            future = self.client.submit(grade_there, job, pure=False)
            given[future.key] = job
            done.add(future)

    def _gone(self) -> CourseError:
        return CourseError(f"the scheduler at {self.address} is gone; run this again")

    def _outcome(self, future: Any) -> Outcome | None:
        from distributed import KilledWorker

        if future.cancelled() or future.status == "lost":
            raise self._gone()
        error = future.exception()
        if isinstance(error, KilledWorker):
            return None
        if error is not None:
            raise error if isinstance(error, CourseError) else CourseError(
                f"a worker cannot grade ({type(error).__name__}: {error}): has it this version?"
            )  # fmt: skip
        outcome: Outcome = future.result()
        return outcome
