"""A PostgreSQL server to kill, for the tests and for benchmarks/grading_class.py."""

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Missing(Exception):  # noqa: N818, what it is
    """No server can be had here; the text says why."""


class Server:
    """PostgreSQL with a folder of its own, on a socket in that folder and no port."""

    def __init__(self, folder):
        if not PROGRAMS or not sys.platform.startswith("linux"):
            raise Missing("no PostgreSQL (Debian: apt install postgresql)")
        self.folder, self.process = folder, None
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.rights = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses
            if "postgres" not in {user.pw_name for user in pwd.getpwall()}:
                raise Missing("root without a user postgres: PostgreSQL runs as no other")
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


@contextlib.contextmanager
def running():
    """A server that runs, empty. Raises Missing."""
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:  # a socket's path is short
        server = Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()
