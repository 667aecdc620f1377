"""Grading on a real Dask cluster: a scheduler with TLS and workers that may die."""

import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
pytest.importorskip("distributed")

from llmcourse.course import CourseError
from llmcourse.grading import autograde, cluster
from llmcourse.grading.cluster import ClusterPool
from llmcourse.grading.grader import Job

HERE = runpy.run_path(str(Path(__file__).with_name("classroom.py")))
prepared, classroom, pool, known = (HERE[n] for n in ("prepared", "classroom", "pool", "known"))
LETHAL = """
import os
from llmcourse.grading import cluster

def pool(workers):
    def grade(jobs):
        if jobs[0].key == "lethal":
            os._exit(9)
        return [cluster.Outcome(jobs[0].key, notebook="{}")]
    return grade

cluster.LocalPool = pool
"""


def certificate(folder):
    """A key and a certificate that vouches for itself: all of a small cluster's TLS."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl: there is no certificate to encrypt with")
    files = {"ca": folder / "cert.pem", "cert": folder / "cert.pem", "key": folder / "key.pem"}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=cluster", "-keyout", files["key"], "-out", files["cert"]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


class Cluster:
    """Processes on this machine; they end with the test."""

    def __init__(self, folder):
        self.folder, self.files = folder, certificate(folder)
        self.started, self.address = [], ""

    def start(self, kind, *more, **environment):
        tls = [f"--tls-{n}" for n in ("ca-file", "cert", "key")]
        words = [w for n, p in zip(tls, self.files.values(), strict=True) for w in (n, str(p))]
        log = (self.folder / f"{kind}-{len(self.started)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", kind, *words, "--no-dashboard", *more],
            cwd=self.folder, start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log,
            env={**os.environ, "PYTHONPATH": str(HERE["ROOT"]), **environment},
        )  # fmt: skip
        self.started.append(process)
        return process

    def scheduler(self, **environment):
        where = self.folder / "scheduler.json"
        host = ["--host", "tls://127.0.0.1", "--port", "0"]
        process = self.start("scheduler", *host, "--scheduler-file", str(where), **environment)
        while not where.is_file():
            assert process.poll() is None, (self.folder / "scheduler-0.log").read_text()
            time.sleep(0.1)
        self.address = json.loads(where.read_text())["address"]
        return process

    def worker(self, *more, **environment):
        own = ["--nthreads", "1", "--local-directory", str(self.folder)]
        return self.start("worker", self.address, *own, *more, **environment)

    def pool(self):
        return ClusterPool(self.address, **self.files)

    def stop(self):
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a nanny's worker too
            process.wait()


@pytest.fixture
def machines(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_costs_nothing(classroom, known, machines):
    machines.scheduler()
    first = machines.worker("--no-nanny")
    classroom.whole_class()
    seen = []
    with machines.pool() as there:
        machines.worker("--no-nanny")

        def graders(jobs):
            for outcome in there(jobs):
                seen.append(outcome.key)
                if len(seen) == 1:
                    there.client.wait_for_workers(2, timeout=120)
                    first.send_signal(signal.SIGKILL)
                yield outcome

        counts = classroom.run(graders)
    assert counts == known[2]
    assert len(seen) == len(set(seen)) == 7
    assert classroom.table() == known[1]


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_reported_and_its_neighbours_are_graded(machines):
    preload = machines.folder / "lethal.py"
    preload.write_text(LETHAL)
    machines.scheduler(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1")
    machines.worker("--nanny", "--preload", str(preload))
    names = ["first", "lethal", "second", "third"]
    with machines.pool() as there:
        outcomes = {o.key: o for o in there(Job(n, b"", (), None, {}, "") for n in names)}
    assert set(outcomes) == set(names)
    assert outcomes["lethal"].why == "every worker that it was given to died"
    assert all(outcomes[n].notebook for n in names if n != "lethal")


@pytest.mark.slow
def test_a_scheduler_that_goes_away_is_one_clear_line_and_no_failed_submission(
    classroom, machines, monkeypatch
):
    monkeypatch.setattr(cluster, "ANSWER", 5)
    scheduler = machines.scheduler()
    machines.worker("--no-nanny")
    classroom.whole_class()
    with machines.pool() as there:

        def graders(jobs):
            for outcome in there(jobs):
                scheduler.kill()
                yield outcome

        with pytest.raises(CourseError, match=r"scheduler at tls:.* is gone; run this again"):
            classroom.run(graders)
    states = [row.state for row in classroom.rows().values()]
    assert states.count(autograde.WAITING) >= 4


def test_a_cluster_without_workers_or_with_another_key_is_refused(
    machines, tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster, "WAIT", 1)
    monkeypatch.setattr(cluster, "ANSWER", 5)
    machines.scheduler()
    with (
        pytest.raises(CourseError, match=r"the cluster at tls:.* has no worker"),
        machines.pool(),
    ):
        pass
    (tmp_path / "other").mkdir()
    machines.files = certificate(tmp_path / "other")
    with pytest.raises(CourseError, match="no scheduler answers at tls:"), machines.pool():
        pass


def test_what_is_not_encrypted_is_refused(tmp_path):
    files = dict.fromkeys(("ca", "cert", "key"), tmp_path / "none")
    for address in ("tcp://127.0.0.1:8786", "127.0.0.1:8786", "ucx://x:1"):
        with pytest.raises(CourseError, match="needs tls://: an open one runs anyone's code"):
            ClusterPool(address, **files)
    with pytest.raises(CourseError, match="tls ca: there is no file"):
        ClusterPool("tls://127.0.0.1:8786", **files)
