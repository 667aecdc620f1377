"""The trusted side of the sandbox: a bubblewrap with a keeper in it, and submissions opened one
after another."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from llmcourse.course import CourseError
from llmcourse.grading import keeper
from llmcourse.grading.wire import Channel, WireError

PACKAGE = Path(__file__).resolve().parents[1]
# All of this package that a submission needs; the rest is what learners are asked to write.
SHOWN = ("__init__.py", "checks", "grading/__init__.py", "grading/keeper.py",
         "grading/seccomp.py", "grading/wire.py", "grading/worker.py")  # fmt: skip
# Installed packages that hold answers, or that no exercise needs.
HIDDEN = ("transformers", "fla", "flash_linear_attention", "tokenizers", "huggingface_hub",
          "nbgrader", "llmcourse", "safetensors")  # fmt: skip
FIRST_USER = 0x10000  # of the sandbox, where the instructor is root; nobody's on this machine
OWN = ("/tmp/", "/dev/", "/proc/")  # what every submission has for itself
STARTING = 120  # seconds for importing torch on a busy machine
NEEDS = ("grading runs learners' code in bubblewrap, which {}: {}; a learner who checks only "
         "their own work may run with --unsafe-no-sandbox")  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What one submission may take. Bytes, seconds, counts."""

    memory: int = 2 * 2**30  # of all its processes together
    disk: int = 256 * 2**20  # of each of the folders that it can write to; it is memory too
    processes: int = 64  # and threads
    cpu: float = 120.0
    wall: float = 300.0
    cell: float = 60.0  # one cell, or one call of a learner's function

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise CourseError(f"limit {name}: got {value}, needs more than 0")


class SandboxError(CourseError):
    """The sandbox cannot be had, or broke: no fault of a submission."""


class Sandbox:
    """A keeper inside bubblewrap, warm. A context manager; open one submission at a time.

    data: a folder whose files lie where the learner's code runs, or None.
    modules: modules of this package that the assignment lets learners call.
    Raises SandboxError, with what to do, where bubblewrap is missing or not allowed.
    """

    def __init__(self, data: Path | None = None, modules: Sequence[str] = ()) -> None:
        self.data, self.modules = data, tuple(modules)
        self._users = 0

    @property
    def broken(self) -> bool:
        """Whether the sandbox is gone and a new one is needed."""
        return self._bwrap.poll() is not None

    def __enter__(self) -> "Sandbox":
        self._control, theirs = socket.socketpair()
        command = _command(self.data, self.modules, theirs.fileno())
        self._folder = Path(tempfile.mkdtemp(prefix="sandbox-"))
        self._log = (self._folder / "log").open("w+b")
        self._bwrap = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        try:
            self._answer(STARTING)
        except SandboxError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._bwrap.send_signal(signal.SIGKILL)
        self._bwrap.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, limits: Limits) -> Channel:
        """A new submission: a channel to its worker. The one before must have been closed."""
        ours, theirs = socket.socketpair()
        user = self._user() if os.geteuid() == 0 else 0
        order = {"do": "open", "limits": asdict(limits) | {"user": user}}
        with theirs:
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], [theirs.fileno()])
            except OSError as error:
                raise self._broken(str(error)) from None
        self._answer(STARTING)
        channel = Channel(ours)
        try:
            channel.receive(STARTING)  # nothing of the learner's has run: it failed to start
        except WireError as error:
            raise self._broken(f"it cannot open a submission: {error}") from None
        return channel

    def _user(self) -> int:
        """A user that no other submission is now: the kernel counts processes by user."""
        self._users = (self._users + 1) % 0x1000
        return FIRST_USER * (1 + os.getpid() % 0x7000) + self._users

    def interrupt(self) -> None:
        """What Ctrl-C does in a notebook."""
        self._order("interrupt")
        self._answer(STARTING)  # a late signal would hit the next message

    def close(self, *, gone: bool = False) -> str:
        """Kill all of the submission's processes. Says which limit had ended it, or "".

        gone: it seems to have ended. Raises SandboxError where it was killed, but not by us.
        """
        self._order("close", gone=gone)
        answer = self._answer(STARTING)
        if answer["killed"]:
            raise SandboxError(
                "something killed the notebook's process: has this machine too little memory?"
            )
        return str(answer["why"])

    def _order(self, what: str, **more: Any) -> None:
        try:
            self._control.sendall(json.dumps({"do": what, **more}).encode())
        except OSError as error:
            raise self._broken(str(error)) from None

    def _answer(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        text = b""
        while not text.endswith(b"\n"):
            try:
                part = self._control.recv(65536)
            except OSError as error:
                raise self._broken(str(error)) from None
            if not part:
                raise self._broken("it ended")
            text += part
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _broken(self, why: str) -> SandboxError:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else why
        if any("bwrap:" in line for line in said):
            what = "user namespaces must be allowed (on Ubuntu an AppArmor profile for bwrap)"
            return SandboxError(NEEDS.format(f"cannot start here ({said[-1]})", what))
        return SandboxError(f"the sandbox broke: {reason}")


class Unprotected(Sandbox):
    """No sandbox: learner's code runs as the user who grades. For one's own work only."""

    broken = False

    def __enter__(self) -> "Unprotected":
        from llmcourse.grading import worker

        self._start = worker.warm_up
        self._child = 0
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, limits: Limits) -> Channel:
        """A new process, which serves the channel."""
        from llmcourse.grading import worker

        ours, theirs = socket.socketpair()
        self._child = os.fork()
        if self._child == 0:
            ours.close()
            try:
                self._start()
                worker.serve(theirs)
            finally:
                os._exit(0)
        theirs.close()
        channel = Channel(ours)
        channel.receive(STARTING)
        return channel

    def interrupt(self) -> None:
        """What Ctrl-C does in a notebook."""
        os.kill(self._child, signal.SIGINT)

    def close(self, *, gone: bool = False) -> str:
        """End the process; what it started itself may live on."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        self._child = 0
        return ""


def _command(data: Path | None, modules: Sequence[str], control: int) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        what = "install it (Debian, Ubuntu: sudo apt install bubblewrap)"
        raise SandboxError(NEEDS.format("is missing", what))
    for path in (sys.base_prefix, sys.prefix):
        if os.path.realpath(path).startswith(OWN):
            what = "install the course elsewhere: learners' code has a /tmp of its own"
            raise SandboxError(NEEDS.format(f"cannot show it {path}", what))
    tree = _Tree()
    tree.bind("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if Path(f"/{name}").is_symlink():
            tree.arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif Path(f"/{name}").is_dir():
            tree.bind(f"/{name}")
    for path in ("/etc/ld.so.cache", "/etc/fonts"):
        tree.bind(path)
    for path in (sys.base_prefix, sys.prefix):
        tree.bind(os.path.realpath(path), path)
    for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for name in HIDDEN:
            if Path(path, name).is_dir():
                tree.arguments += [
                    "--tmpfs",
                    f"{path}/{name}",
                    "--remount-ro",
                    f"{path}/{name}",
                ]
    _bind_package(tree, modules)
    if data is not None and data.is_dir():
        tree.bind(str(data), f"{keeper.DATA}/{data.name}")
    tree.folder(keeper.DESK)
    tree.arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
                       "--perms", "1777", "--tmpfs", "/tmp", "--remount-ro", "/"]  # fmt: skip
    start = "import socket, sys; from llmcourse.grading import keeper; " \
            "keeper.serve(socket.socket(fileno=int(sys.argv[1])))"  # fmt: skip
    inside = [sys.executable, "-B", "-s", "-P", "-c", start, str(control)]
    return [
        program,
        *_RIGHTS[os.geteuid() == 0],
        *tree.arguments,
        *_environment(),
        "--",
        *inside,
    ]


# What the keeper needs to make namespaces: as root of its own user namespace, or as root.
_COMMON = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
           "--die-with-parent", "--as-pid-1", "--hostname", "grader", "--clearenv",
           "--cap-drop", "ALL"]  # fmt: skip
_KEPT = ["CAP_SYS_ADMIN", "CAP_SETPCAP", "CAP_KILL", "CAP_SETUID", "CAP_SETGID",
         "CAP_SYS_PTRACE"]  # fmt: skip  # the last to see what memory another user takes
_CAPABILITIES = [word for name in _KEPT for word in ("--cap-add", name)]
_RIGHTS = {
    True: [*_COMMON, *_CAPABILITIES],
    False: ["--unshare-user", *_COMMON, *_CAPABILITIES],
}


class _Tree:
    """bubblewrap's arguments for a tree of read-only files."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.made = {"/"}

    def bind(self, path: str, at: str | None = None) -> None:
        """Show a file or folder of this machine; nothing where there is none."""
        at = at or path
        if not os.path.exists(path) or any(at.startswith(f"{p}/") for p in ("/usr",)):
            return
        self.folder(os.path.dirname(at))
        self.arguments += ["--ro-bind", path, at]
        self.made.add(at)

    def folder(self, path: str) -> None:
        """Make a folder and those above it; bubblewrap's own are closed to other users."""
        for part in [*reversed(Path(path).parents), Path(path)]:
            if str(part) not in self.made:
                self.arguments += ["--perms", "0755", "--dir", str(part)]
                self.made.add(str(part))


def _bind_package(tree: _Tree, modules: Sequence[str]) -> None:
    files = [m.removeprefix("llmcourse.").replace(".", "/") for m in modules]
    for name in (*SHOWN, *(f if (PACKAGE / f).is_dir() else f"{f}.py" for f in files)):
        source = PACKAGE / name
        parts = sorted(source.rglob("*.py")) if source.is_dir() else [source]
        for part in parts:
            tree.bind(str(part), f"/course/llmcourse/{part.relative_to(PACKAGE)}")


def _environment() -> list[str]:
    values = {
        "HOME": "/tmp", "USER": "learner",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8", "PYTHONPATH": "/course",
        "IPYTHONDIR": "/tmp/.ipython", "MPLCONFIGDIR": "/tmp/.mpl",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "NBGRADER_EXECUTION": "autograde",
    }  # fmt: skip
    return [word for name, value in values.items() for word in ("--setenv", name, value)]
