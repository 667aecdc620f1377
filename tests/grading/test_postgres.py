"""The gradebook in PostgreSQL: the same grades as in SQLite, also when the server is killed."""

import os
import pwd
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("nbgrader")
pytest.importorskip("psycopg")

from llmcourse.course import CourseError
from llmcourse.grading import stock

HERE = runpy.run_path(str(Path(__file__).with_name("classroom.py")))
prepared, classroom, pool, known, recorded = (
    HERE[n] for n in ("prepared", "classroom", "pool", "known", "recorded")
)
NAME, EARNED = HERE["NAME"], HERE["GRADED"]
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Server:
    """PostgreSQL with a folder of its own, on a socket in that folder and no port."""

    def __init__(self, folder):
        self.folder, self.process = folder, None
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.rights = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses
            if "postgres" not in {user.pw_name for user in pwd.getpwall()}:
                pytest.skip("root without a user postgres: PostgreSQL runs as no other")
            self.user = "postgres"
            owner = pwd.getpwnam(self.user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            self.rights = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self.url = f"postgresql+psycopg://{self.user}@/postgres?host={folder}"
        self.call("initdb", "-A", "trust", "-U", self.user, "--no-sync", "-D", self.data)

    @property
    def data(self):
        return f"{self.folder}/data"

    def call(self, program, *words):
        subprocess.run([PROGRAMS[-1] / program, *words], check=True, capture_output=True,
                       cwd=self.folder, **self.rights)  # fmt: skip

    def start(self):
        log = self.folder / "log"
        self.process = subprocess.Popen(
            [PROGRAMS[-1] / "postgres", "-D", self.data, "-k", str(self.folder), "-h", ""],
            cwd=self.folder, stdout=log.open("w"), stderr=subprocess.STDOUT, **self.rights,
        )  # fmt: skip
        for _ in range(600):
            if self.answers():
                return
            time.sleep(0.1)
        raise AssertionError(log.read_text())

    def answers(self):
        ready = [PROGRAMS[-1] / "pg_isready", "-h", str(self.folder)]
        return subprocess.run(ready, capture_output=True).returncode == 0

    def kill(self):
        """The server and all that it started, at once."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            os.kill(one, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server():
    if not PROGRAMS or not sys.platform.startswith("linux"):
        pytest.skip("no PostgreSQL (Debian: apt install postgresql)")
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:  # a socket's path is short
        made = Server(Path(folder))
        made.start()
        yield made
        made.kill()


@pytest.fixture
def served(classroom, server):
    """The whole class handed in, in a course whose gradebook is in PostgreSQL."""
    classroom.setting(f'c.CourseDirectory.db_url = "{server.url}"')
    (classroom.root / "gradebook.db").unlink()
    stock.must(classroom.api.generate_assignment(NAME, force=True), "generating")
    return classroom.whole_class()


def test_the_same_grades_and_a_killed_server_costs_none(served, server, recorded, known):
    recorded.on = lambda number: number == 4 and server.kill()
    with pytest.raises(CourseError, match="the gradebook cannot be used") as told:
        served.run(recorded)
    assert "\n" not in str(told.value)
    with pytest.raises(CourseError, match="the gradebook cannot be used"):
        served.run(recorded)
    server.start()
    there = served.scores()
    assert 0 < len(there) < len(EARNED)
    assert all(there[name] == EARNED[name] for name in there)
    recorded.on = lambda number: None
    counts = served.run(recorded)
    assert counts.before == len(there) and counts.before + counts.graded == len(EARNED)
    assert served.table() == known[1]
    assert served.rows()["ada"].score == 8
