"""Grading a class: submissions a minute, ours beside stock nbgrader, and what a call costs.

python benchmarks/grading.py           measure, write results/grading.json
python benchmarks/grading.py --quick   a small run that writes nothing

The same submissions of 08_chunked_delta_rule, from its zoo, are graded by nbgrader's own API,
one after another in this process, and by `llmcourse autograde` on all cores with the sandbox.
The two take turns, a few submissions at a time; starting our graders counts as our time.
"""

import argparse
import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from llmcourse import measure
from llmcourse.course import Assignment, find
from llmcourse.grading import autograde, demo, stock, zoo
from llmcourse.grading.grader import LocalPool
from llmcourse.grading.sandbox import Limits, Sandbox
from llmcourse.grading.standins import Link
from llmcourse.progress import bar

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
SUBMISSIONS, TURN, CALLS = 40, 8, 200
STOCK = """
c.Autograde.sanitize_preprocessors = ["nbgrader.preprocessors." + name for name in
    ("ClearOutput", "DeduplicateIds", "OverwriteKernelspec", "OverwriteCells",
     "CheckCellMetadata")]
c.Autograde.autograde_preprocessors = ["nbgrader.preprocessors." + name for name in
    ("Execute", "IgnorePattern", "LimitOutput", "SaveAutoGrades", "AssignLatePenalties",
     "CheckCellMetadata")]
"""
Row = dict[str, Any]


def course(folder: Path, one: Assignment, count: int, settings: str = "") -> Any:
    """A course folder in which `count` learners have handed in an answer from the zoo."""
    api = demo.set_up(ROOT, folder)
    config = folder / "nbgrader_config.py"
    config.write_text(config.read_text() + settings)
    api = stock.api(folder)
    stock.must(api.generate_assignment(one.name), "generating")
    source = zoo.read_notebook(one.notebook(folder / "solutions"))
    release = zoo.read_notebook(one.notebook(folder / "exercises"))
    answers = zoo.entries(ROOT / "tests" / "exercises" / "zoo" / one.name)
    for number in range(count):
        notebook = zoo.submission(release, source, answers[number % len(answers)])
        demo.drop_markers(notebook)
        path = one.notebook(folder / "submitted" / learner(number))
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook))
    return api


def learner(number: int) -> str:
    """A name; the names are in the order of the numbers."""
    return f"learner-{number:05}"


def grades(api: Any, one: Assignment, count: int) -> list[list[float]]:
    """The scores of every check of every learner."""
    with api.gradebook as book:
        return [
            [g.score for g in sorted(book.find_submission_notebook(
                one.slug, one.name, learner(n)).grades, key=lambda g: g.name)]
            for n in range(count)
        ]  # fmt: skip


def throughput(count: int, turn: int) -> dict[str, Any]:
    """Seconds of every turn of both, and the largest memory of our processes together."""
    one = find("08", ROOT / "exercises")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch, LocalPool(os.cpu_count() or 1) as pool:
        theirs = course(Path(scratch, "stock"), one, count, STOCK)
        ours = course(Path(scratch, "split"), one, count)
        with bar(count, what="grading") as done, _peak() as peak:
            for start in range(0, count, turn):
                names = [learner(n) for n in range(start, min(start + turn, count))]
                begin = time.perf_counter()
                for name in names:
                    stock.must(theirs.autograde(one.name, name), f"grading {name}")
                middle = time.perf_counter()
                autograde.run(
                    Path(scratch, "split"), one.name, pool=pool, students=names, progress=False
                )
                end = time.perf_counter()
                rows += [
                    {"path": "stock", "submissions": len(names), "seconds": middle - begin},
                    {"path": "split", "submissions": len(names), "seconds": end - middle},
                ]
                done.update(len(names))
        same = grades(theirs, one, count) == grades(ours, one, count)
    rates = {
        path: 60 * sum(r["submissions"] for r in mine) / sum(r["seconds"] for r in mine)
        for path in ("stock", "split")
        for mine in [[r for r in rows if r["path"] == path]]
    }
    return {
        "assignment": one.name, "rows": rows, "per_minute": rates, "peak_bytes": peak[0],
        "ratio": rates["split"] / rates["stock"], "same_grades": same,
    }  # fmt: skip


@contextlib.contextmanager
def _peak() -> Iterator[list[int]]:
    """Bytes that this process and those it started hold together, shared ones counted once."""
    peak, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            peak[0] = max(peak[0], sum(map(_held, _family(os.getpid()))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _held(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def calls(count: int) -> list[Row]:
    """The median time of a call across the boundary, beside one within the process."""
    source = "import torch\ndef double(x):\n    return 2 * x"
    space: dict[str, Any] = {}
    exec(source, space)
    rows = []
    with Sandbox() as sandbox:
        link = Link(sandbox.open(Limits()), 60.0)
        link.run(source)
        split = link.names(["double"])["double"]
        for shape in [(1,), (64, 64), (512, 512)]:
            x = torch.ones(shape)
            tasks = {
                "in process": lambda x=x: space["double"](x),
                "split": lambda x=x: split(x.clone()),
            }
            times = measure.interleaved(tasks, count, warmup=5)
            rows += [
                {"shape": list(shape), "path": path, "median_s": median(seconds)}
                for path, seconds in times.items()
            ]
        sandbox.close()
    return rows


def run(quick: bool) -> dict[str, Any]:
    """Measure everything; returns what results/grading.json holds."""
    torch.set_num_threads(1)
    count, turn, repeats = (2, 1, 5) if quick else (SUBMISSIONS, TURN, CALLS)
    return {
        "machine": measure.machine(),
        "throughput": throughput(count, turn),
        "calls": calls(repeats),
    }


def report(result: dict[str, Any]) -> None:
    """Print the rates and the cost of a call."""
    found = result["throughput"]
    for path, rate in found["per_minute"].items():
        print(f"{path:6}{rate:8.1f} submissions a minute")
    print(f"ratio {found['ratio']:.1f}, same grades: {found['same_grades']}, "
          f"at most {found['peak_bytes'] >> 20} MB")  # fmt: skip
    for row in result["calls"]:
        print(
            f"a call with {row['shape']!s:11} {row['path']:11}{1e6 * row['median_s']:9.0f} us"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run that writes nothing")
    options = parser.parse_args()
    shutil.which("bwrap") or parser.error("needs bubblewrap")
    result = run(options.quick)
    report(result)
    if not options.quick:
        (RESULTS / "grading.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
