"""Inside bubblewrap: a process that has imported torch, and forks one child a submission.

The keeper itself runs none of a learner's code. Each child gets namespaces of its own for
processes, mounts, network and IPC, empty folders to write in, a user id without any right, and
limits; when it is closed, everything in its namespaces dies with it. So nothing of one
submission can be seen by the next, or reach the keeper.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from llmcourse.grading import seccomp

DESK = "/submission"  # where a learner's code stands; data files of the assignment lie there
WRITTEN = ("/tmp", "/dev/shm", DESK)  # folders in memory, empty at first
DATA = "/data"  # where bubblewrap has put those files
POLL = 0.05  # seconds between two looks at what a submission takes
LEAVING = 1.0  # seconds that a process which seems to be gone may take to end
INODES = 20_000  # files and folders in each of the folders that can be written to
BUFFER = 2**18  # bytes that the kernel may hold for a socket or pipe
KILLED = 9  # what a maker returns when its submission was killed
NEW = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount, uts, ipc, pid, net
READ_ONLY, NO_SUID, NO_DEV, PRIVATE = 1, 2, 4, 0x40000 | 0x4000
SET_PDEATHSIG, CAPBSET_DROP, NO_NEW_PRIVS, LAST_CAPABILITY = 1, 24, 38, 63

_libc = ctypes.CDLL(None, use_errno=True)


def _must(result: int, doing: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{doing}: {os.strerror(ctypes.get_errno())}")


def serve(control: socket.socket) -> None:
    """Open and close submissions as the other end of `control` asks, one at a time."""
    from llmcourse.grading import worker

    worker.warm_up()
    gc.freeze()  # a child's collections need not look at all that torch is made of
    _say(control, ready=True)
    child: Child | None = None
    while True:
        if select.select([control], [], [], POLL if child else None)[0]:
            text, fds, _, _ = socket.recv_fds(control, 65536, 1)
            if not text:
                break
            order = json.loads(text)
            if order["do"] == "open":
                child = Child(order["limits"], fds[0])
                _say(control, open=True)
            elif order["do"] == "interrupt":
                if child:
                    child.signal(signal.SIGINT)
                _say(control, interrupted=True)
            elif order["do"] == "close":
                killed = child.close(gone=order["gone"]) if child else False
                _say(control, closed=True, why=child.why if child else "", killed=killed)
                child = None
        if child:
            child.look()


def _say(control: socket.socket, **message: Any) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


class Child:
    """One submission: a process that is the first of its own namespace, and all it starts."""

    def __init__(self, limits: dict[str, Any], channel: int) -> None:
        self.limits, self.why, self.pid = limits, "", 0
        self.started = time.monotonic()
        told, tell = os.pipe()
        self.maker = os.fork()
        if self.maker == 0:
            _in_new_namespaces(limits, channel, told, tell)
        os.close(channel)
        os.close(tell)
        with os.fdopen(told) as file:
            text = file.read()  # the number of the child, once everything is made
        self.pid = int(text or 0)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, number)

    def look(self) -> None:
        """End the submission where it takes more than its limits."""
        files = _files(self.pid)
        pids = {int(n) for n in os.listdir("/proc") if n.isdigit()} - {os.getpid(), self.maker}
        used, most = _used(pids), self.limits["memory"]
        if used["memory"] + files > most and sum(map(_memory, pids)) + files > most:
            self._end(f"it took more than {self.limits['memory'] >> 20} MB of memory")
        elif used["cpu"] > self.limits["cpu"]:
            self._end(f"it ran for more than {self.limits['cpu']} s on the processor")
        elif used["processes"] > self.limits["processes"]:
            self._end(f"it started more than {self.limits['processes']} processes or threads")
        elif time.monotonic() - self.started > self.limits["wall"]:
            self._end(f"it took more than {self.limits['wall']} s")

    def _end(self, why: str) -> None:
        self.why = self.why or why
        self.signal(signal.SIGKILL)

    def close(self, *, gone: bool) -> bool:
        """Kill all that is left, returning when nothing of it runs.

        gone: it seems to have ended. Returns whether somebody else had killed it: it cannot
        have done so itself, as the first process of a namespace.
        """
        until = time.monotonic() + LEAVING * gone
        ended, status = os.waitpid(self.maker, os.WNOHANG)
        while not ended and time.monotonic() < until:
            time.sleep(POLL / 10)
            ended, status = os.waitpid(self.maker, os.WNOHANG)
        self.signal(signal.SIGKILL)
        if not ended:  # the maker ends after the first process of the namespace, hence all
            os.waitpid(self.maker, 0)
        by_signal = os.waitstatus_to_exitcode(status) in (KILLED, -signal.SIGKILL)
        return bool(ended) and by_signal and not self.why


def _used(pids: set[int]) -> dict[str, float]:
    """What processes take together: bytes, as an upper bound; CPU seconds; threads."""
    used = {"memory": 0.0, "cpu": 0.0, "processes": 0.0}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used["cpu"] += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            used["processes"] += int(fields[17])
            used["memory"] += int(fields[21]) * os.sysconf("SC_PAGESIZE") + _buffers(pid)
    return used


def _files(pid: int) -> int:
    """Bytes of the files that a process has written: they are in memory."""
    total = 0
    for place in WRITTEN:
        with contextlib.suppress(OSError):  # it has just ended
            room = os.statvfs(f"/proc/{pid}/root{place}")
            total += (room.f_blocks - room.f_bfree) * room.f_frsize
    return total


def _memory(pid: int) -> int:
    """Bytes of a process that it shares with nobody, and its part of the rest."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    shared = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return shared + _buffers(pid)


def _buffers(pid: int) -> int:
    """Bytes that the kernel may hold for a process's open files, each taken for a full one."""
    with contextlib.suppress(OSError):
        return BUFFER * len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def _in_new_namespaces(limits: dict[str, Any], channel: int, told: int, tell: int) -> NoReturn:
    """Never returns: makes the namespaces, then their first process, and waits for its end."""
    code = 1
    try:
        os.close(told)
        _must(_libc.unshare(NEW), "unshare")
        _mount_what_is_written_to(limits)
        pid = os.fork()
        if pid == 0:
            os.close(tell)
            _become_the_submission(limits, channel)
        os.write(tell, str(pid).encode())
        os.close(tell)
        os.close(channel)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code = KILLED if ended == -signal.SIGKILL else 0
    except BaseException:  # for the log
        traceback.print_exc()
    finally:
        os._exit(code)


def _mount_what_is_written_to(limits: dict[str, Any]) -> None:
    """Empty folders in memory, also over what would tell of other processes."""
    _must(_libc.mount(b"none", b"/", None, PRIVATE, None), "private mounts")
    room = f"size={limits['disk']},nr_inodes={INODES},mode=1777".encode()
    for place in WRITTEN:
        flags = NO_SUID | NO_DEV
        _must(_libc.mount(b"tmpfs", place.encode(), b"tmpfs", flags, room), place)
    for place in ("/proc", "/dev/pts"):
        flags = NO_SUID | NO_DEV | READ_ONLY
        _must(_libc.mount(b"tmpfs", place.encode(), b"tmpfs", flags, b"size=4k"), place)
    if os.path.isdir(DATA):
        shutil.copytree(DATA, DESK, dirs_exist_ok=True)
        for path in (DESK, *map(str, Path(DESK).rglob("*"))):
            os.chmod(path, 0o777)


def _become_the_submission(limits: dict[str, Any], channel: int) -> NoReturn:
    """Give up every right, set the limits, and serve the examiner."""
    code = 1
    try:
        os.setsid()  # a signal to "my group" must not reach the keeper
        _close_all_but(channel)
        _set_limits(limits)
        _drop_rights(limits["user"])
        os.chdir(DESK)
        seccomp.refuse()
        from llmcourse.grading import worker

        worker.serve(socket.socket(fileno=channel))
        code = 0
    finally:
        os._exit(code)


def _close_all_but(channel: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, channel)
    os.closerange(channel + 1, 65536)


def _set_limits(limits: dict[str, Any]) -> None:
    """Of a single process; the keeper looks at the sum."""
    memory, cpu = limits["memory"], limits["cpu"]
    for what, most in [
        (resource.RLIMIT_DATA, memory), (resource.RLIMIT_AS, memory + 2**33),
        (resource.RLIMIT_CPU, int(cpu) + 1), (resource.RLIMIT_FSIZE, limits["disk"]),
        (resource.RLIMIT_NPROC, limits["processes"]), (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_MSGQUEUE, 0),
    ]:  # fmt: skip
        resource.setrlimit(what, (most, most))


def _drop_rights(user: int) -> None:
    """No capability, now or by running another program; the death of the keeper is ours."""
    for capability in range(LAST_CAPABILITY + 1):
        _libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    if user:  # the keeper is root, and this is another user
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _must(_libc.capset(header, (ctypes.c_uint32 * 6)()), "giving up capabilities")
    _must(_libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    _must(_libc.prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "dying with the keeper")
