"""A large class, graded twice: undisturbed, and while processes are killed at random moments.

python benchmarks/grading_class.py           grade 2,000, write results/grading_class.json
python benchmarks/grading_class.py --quick   a small run that writes nothing

The submissions are the zoos' answers, in turn. In the second run the gradebook is in
PostgreSQL, and the coordinator, a grader (or its examiner), a process of a sandbox, or the
server is killed (SIGKILL) again and again; a coordinator that ended so is started anew, as an
instructor would. Both runs must end with the same table of grades, with every submission in it.
"""

import argparse
import contextlib
import io
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading import course, learner

from llmcourse import measure
from llmcourse.course import Assignment, assignments
from llmcourse.grading import report, zoo

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
SUBMISSIONS, KILLS, SEED = 2000, 60, 0
POSTGRES = runpy.run_path(str(ROOT / "tests" / "grading" / "postgres.py"))
VICTIMS = ("coordinator", "grader", "sandbox", "server")
COMMAND = [sys.executable, "-m", "llmcourse.cli", "autograde"]


@dataclass(frozen=True)
class Kill:
    """Seconds to wait, a kind of process, and which of these: a place in [0, 1)."""

    wait: float
    victim: str
    which: float


def grade(
    folder: Path, one: Assignment, kills: Iterable[Kill] = (), server: Any = None
) -> dict[str, Any]:
    """Run `llmcourse autograde` to its end, started anew when it was killed or had to stop.

    server: of the gradebook.
    """
    moments, done = iter(kills), Counter[str]()
    memory, begin = [], time.perf_counter()
    while True:
        with subprocess.Popen(
            [*COMMAND, one.number], cwd=folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        ) as coordinator:  # fmt: skip
            for kill in moments:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    coordinator.wait(kill.wait)
                    break
                done[kill.victim] += _kill(coordinator.pid, kill, server)
            while coordinator.poll() is None:
                memory.append(_resident(coordinator.pid))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    coordinator.wait(1)
        if coordinator.returncode in (0, 1):  # all graded, or all but some; not: stopped
            seconds = time.perf_counter() - begin
            return {"seconds": seconds, "kills": dict(done), "coordinator_bytes": memory}


def _kill(coordinator: int, kill: Kill, server: Any) -> bool:
    """Kill a process; whether there was one. A server comes back."""
    if kill.victim == "server":
        server.kill()
        server.start()
        return True
    words = {"grader": "grader.serve", "sandbox": "keeper.serve"}
    pids = [coordinator]
    if kill.victim != "coordinator":
        pids = [p for p in _family(coordinator) if words[kill.victim] in _command(p)]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[int(kill.which * len(pids))], signal.SIGKILL)
    return bool(pids)


def _family(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _family(int(child))


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return 0


def table(folder: Path) -> str:
    """The grades of the whole class, as CSV."""
    text = io.StringIO()
    report.export(folder, text, "csv")
    return text.getvalue()


def classes(count: int) -> dict[Assignment, int]:
    """How many of the class hand in which assignment: as evenly as it goes."""
    known = assignments(ROOT / "exercises")
    return {one: len(range(i, count, len(known))) for i, one in enumerate(known)}


def run(quick: bool) -> dict[str, Any]:
    """Grade the class twice; returns what results/grading_class.json holds."""
    count, kills = (2, 1) if quick else (SUBMISSIONS, KILLS)
    parts = {one: size for one, size in classes(count).items() if size}
    rows = []
    for one, size in parts.items():
        rows.append(twice(one, size, max(1, kills * size // count)))
        print(f"{one.name}: {size}, differences: {rows[-1]['differences']}", flush=True)
    return {"machine": measure.machine(), "seed": SEED, "rows": rows}


def twice(one: Assignment, size: int, kills: int) -> dict[str, Any]:
    """One assignment's part of the class: undisturbed in SQLite, killed in PostgreSQL."""
    chance = random.Random(f"{SEED} {one.name}")
    with tempfile.TemporaryDirectory() as scratch, POSTGRES["running"]() as server:
        calm, wild = Path(scratch, "calm"), Path(scratch, "wild")
        course(calm, one, size)
        course(wild, one, size, f'c.CourseDirectory.db_url = "{server.url}"\n')
        for folder in (calm, wild):
            (folder / "pyproject.toml").touch()
        quiet = grade(calm, one)
        wait = quiet["seconds"] / (kills + 1)
        moments = [
            Kill(chance.uniform(0.5, 1.5) * wait, chance.choice(VICTIMS), chance.random())
            for _ in range(kills)
        ]
        killed = grade(wild, one, moments, server)
        return {
            "assignment": one.name, "submissions": size, "calm": quiet, "killed": killed,
            "differences": differences(table(calm), table(wild)),
            "states": dict(Counter(row.state for row in report.rows(wild))),
            "as_deserved": _as_deserved(wild, one, size),
        }  # fmt: skip


def differences(one: str, other: str) -> list[str]:
    """The lines that only one of two tables has."""
    return sorted(set(one.splitlines()) ^ set(other.splitlines()))


def _as_deserved(folder: Path, one: Assignment, size: int) -> bool:
    """Whether every score is full exactly for the zoo's right answers."""
    answers = zoo.entries(ROOT / "tests" / "exercises" / "zoo" / one.name)
    found = {row.student: row for row in report.rows(folder)}
    return all(
        (found[learner(n)].score == found[learner(n)].max_score)
        == answers[n % len(answers)].right
        for n in range(size)
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    options = parser.parse_args()
    try:
        result = run(options.quick)
    except POSTGRES["Missing"] as reason:
        parser.error(str(reason))
    for row in result["rows"]:
        print(f"{row['assignment']:24}{row['submissions']:6} {row['states']}, "
              f"differences: {len(row['differences'])}, {row['killed']['kills']}")  # fmt: skip
    if not options.quick:
        (RESULTS / "grading_class.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
