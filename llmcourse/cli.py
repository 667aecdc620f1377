"""The `llmcourse` command: a learner's two jobs and an instructor's."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmcourse import course
from llmcourse.course import CourseError

EXERCISE = "its number, as in 02, or its name"
LEAST_MEMORY = 512  # MB
DAY = 86400  # seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 fine, 1 checks failed, 2 could not run."""
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    if rest and options.command != "lab":
        parser.error(f"unknown argument: {' '.join(rest)}")
    try:
        return int(options.run(options, rest))
    except CourseError as error:
        print(f"llmcourse: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        print("\nllmcourse: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmcourse", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="run the checks of one exercise on your copy")
    check.add_argument("exercise", help=EXERCISE)
    check.add_argument("notebook", nargs="?", type=Path, help="another copy than my_work/'s")
    check.set_defaults(run=_check)

    lab = commands.add_parser(
        "lab", help="copy the exercises into my_work/ once and open JupyterLab there"
    )
    lab.add_argument("--prepare-only", action="store_true", help="copy; do not open JupyterLab")
    lab.set_defaults(run=_lab)

    _add_course(commands)
    _add_class(commands)
    return parser


def _add_course(commands: Any) -> None:
    release = commands.add_parser("release", help="regenerate exercises/ from solutions/")
    release.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail if exercises/ is out of date",
    )
    release.set_defaults(run=_release)

    leaks = commands.add_parser(
        "leaks",
        help="look for solutions and hidden tests where learners read",
    )
    leaks.set_defaults(run=_leaks)

    bundle = commands.add_parser("bundle", help="pack what learners get into a zip file")
    bundle.add_argument("--to", type=Path, help="another file than _build/student-bundle.zip")
    bundle.set_defaults(run=_bundle)

    demo = commands.add_parser("demo-class", help="grade a class of six sample learners")
    demo.set_defaults(run=_demo)


def _add_class(commands: Any) -> None:
    collect = commands.add_parser("collect", help="fetch what learners handed in")
    collect.add_argument("exercise", help=EXERCISE)
    collect.set_defaults(run=_collect)

    _add_autograde(commands)

    feedback = commands.add_parser("feedback", help="write a page of feedback for each learner")
    feedback.add_argument("exercise", help=EXERCISE)
    feedback.add_argument("--release", action="store_true", help="and hand it out (exchange)")
    feedback.set_defaults(run=_feedback)

    export = commands.add_parser("export", help="write the grades as CSV")
    export.add_argument("exercise", nargs="?", help=f"{EXERCISE}; all of them without")
    export.add_argument("--format", choices=["csv", "canvas", "moodle"], default="csv")
    export.add_argument("--to", type=Path, help="a file; without, the terminal")
    export.set_defaults(run=_export)

    status = commands.add_parser("status", help="what is graded, what failed, what waits")
    status.add_argument("exercise", nargs="?", help=f"{EXERCISE}; all of them without")
    status.set_defaults(run=_status)


def _add_autograde(commands: Any) -> None:
    grade = commands.add_parser("autograde", help="grade what learners handed in, in a sandbox")
    grade.add_argument("exercise", help=EXERCISE)
    grade.add_argument(
        "--student", action="append", default=[], help="only this one; repeat it"
    )
    grade.add_argument("--again", action="store_true", help="also what is graded already")
    grade.add_argument("--workers", type=int, help="processes; as many as there are cores")
    grade.add_argument("--memory", type=int, help="MB that one submission may take (2048)")
    grade.add_argument("--seconds", type=float, help="that one cell or call may take (60)")
    grade.add_argument("--scheduler", help="tls://host:port of a Dask cluster that grades")
    for name in ("ca", "cert", "key"):
        grade.add_argument(f"--tls-{name}", type=Path, help=f"the cluster's {name} file")
    grade.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="run learners' code as your own: for your own work only",
    )
    grade.set_defaults(run=_autograde)


def _check(options: argparse.Namespace, rest: list[str]) -> int:
    from llmcourse import runner

    root = course.find_root()
    one = course.find(options.exercise, root / "exercises")
    return runner.report(one, root, options.notebook)


def _lab(options: argparse.Namespace, rest: list[str]) -> int:
    from llmcourse import lab

    root = course.find_root()
    print("\n".join(lab.prepare(root)), flush=True)
    return 0 if options.prepare_only else lab.open_lab(root, rest)


def _release(options: argparse.Namespace, rest: list[str]) -> int:
    stage = _grading("release")
    root = course.find_root()
    target = root / "exercises"
    files = stage.make(root)
    changes = stage.differences(files, target) if options.check else stage.write(files, target)
    print("\n".join(changes or [f"exercises/ is current: {len(files)} files"]))
    if options.check and changes:
        print("llmcourse: exercises/ is not current: run make exercises", file=sys.stderr)
        return 1
    return 0


def _leaks(options: argparse.Namespace, rest: list[str]) -> int:
    found = _grading("leaks").check(course.find_root())
    print("\n".join(map(str, found)) or "no solution and no hidden test found")
    return 1 if found else 0


def _bundle(options: argparse.Namespace, rest: list[str]) -> int:
    bundle, root = _grading("bundle"), course.find_root()
    path = options.to or root / bundle.FILE
    files = bundle.make(root)
    bundle.write(files, path)
    print(f"{path}: {len(files)} files")
    return 0


def _demo(options: argparse.Namespace, rest: list[str]) -> int:
    return int(_grading("demo").run(course.find_root()))


def _name(options: argparse.Namespace) -> str:
    """The full name of the assignment that was asked for."""
    return course.find(options.exercise, course.find_root() / "exercises").name


def _collect(options: argparse.Namespace, rest: list[str]) -> int:
    stock, name = _grading("stock"), _name(options)
    stock.collect(stock.api(course.find_root()), name)
    return 0


def _autograde(options: argparse.Namespace, rest: list[str]) -> int:
    autograde, name = _grading("autograde"), _name(options)
    limits = _limits(options)
    with _cluster(options) as pool:
        counts = autograde.run(
            course.find_root(), name, pool=pool, students=options.student, again=options.again,
            sandboxed=not options.unsafe_no_sandbox, limits=limits, workers=options.workers,
        )  # fmt: skip
    print(f"{name}: {counts.graded} graded, {counts.failed} failed, {counts.before} before")
    if not counts.graded + counts.failed + counts.before:
        print(f"nothing was handed in: looked for is {course.looked_for(name)}")
    status = f"llmcourse status {options.exercise}"
    if counts.failed:
        print(f"{status} says why")
    if counts.strays:
        print(f"not recognised: {counts.strays} ({status} names them)")
    return int(counts.failed > 0)


def _limits(options: argparse.Namespace) -> Any:
    """The course's limits, or those asked for; more seconds for a cell are more for all."""
    settings = _grading("stock").settings(course.find_root())
    limits = _grading("pipeline").SplitExecute(config=settings).limits
    if options.memory is not None:
        if not LEAST_MEMORY <= options.memory < 2**30:
            raise CourseError(
                f"memory: got {options.memory} MB, needs {LEAST_MEMORY} or more: PyTorch's own"
            )
        limits = replace(limits, memory=options.memory << 20)
    if options.seconds is not None:
        if not 0 < options.seconds <= DAY:
            raise CourseError(f"seconds: got {options.seconds:g}, needs more than 0, to {DAY}")
        more = max(1.0, options.seconds / limits.cell)
        limits = replace(
            limits, cell=options.seconds, cpu=limits.cpu * more, wall=limits.wall * more
        )
    return limits


def _cluster(options: argparse.Namespace) -> Any:
    if not options.scheduler:
        return contextlib.nullcontext()
    files = {n: getattr(options, f"tls_{n}") for n in ("ca", "cert", "key")}
    missing = [f"--tls-{n}" for n, path in files.items() if path is None]
    if missing:
        raise CourseError(f"--scheduler needs {', '.join(missing)} too: files of its TLS")
    return _grading("cluster").ClusterPool(options.scheduler, **files)


def _feedback(options: argparse.Namespace, rest: list[str]) -> int:
    stock, name, root = _grading("stock"), _name(options), course.find_root()
    api = stock.api(root)
    if not stock.work(api, api.coursedir.autograded_directory, name, "*.ipynb"):
        raise CourseError(
            f"nothing of {name} is graded yet: run llmcourse autograde {options.exercise}; "
            f"llmcourse status {options.exercise} then says what could not be graded"
        )
    stock.must(api.generate_feedback(name, force=True), f"feedback for {name}")
    leaks = _grading("leaks")
    found = leaks.check_feedback(root, public=leaks.public_text(root), assignment=name)
    for leak in found:
        leak.file.unlink(missing_ok=True)
        print(leak, file=sys.stderr)
    if found:
        print("these pages show text of a hidden test and were taken away", file=sys.stderr)
    print(f"feedback for {name} is in feedback/")
    if options.release:
        stock.hand_out(api, name)
    return 1 if found else 0


def _export(options: argparse.Namespace, rest: list[str]) -> int:
    report, root = _grading("report"), course.find_root()
    name = _name(options) if options.exercise else None
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_new_file(options.to)) if options.to else sys.stdout
        count = report.export(root, file, options.format, name)
    if options.to:
        print(f"{options.to}: {count} rows")
    return 0


def _new_file(path: Path) -> Any:
    try:
        return path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise CourseError(f"{path} cannot be written ({error.strerror})") from None


def _status(options: argparse.Namespace, rest: list[str]) -> int:
    name = _name(options) if options.exercise else None
    print(_grading("report").status(course.find_root(), name))
    return 0


def _grading(module: str):  # type: ignore[no-untyped-def]
    """Import a part of llmcourse.grading, which needs the grade extra."""
    import importlib

    try:
        return importlib.import_module(f"llmcourse.grading.{module}")
    except ModuleNotFoundError as error:
        if error.name == "llmcourse.grading":  # the student bundle
            raise CourseError(
                "this copy of the course is a learner's: it grades nothing"
            ) from None
        if error.name and error.name.startswith("llmcourse"):
            raise
        raise CourseError(f"{error.name} is missing: pip install -e '.[grade]'") from None


if __name__ == "__main__":
    sys.exit(main())
