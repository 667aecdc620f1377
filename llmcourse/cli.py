"""The `llmcourse` command: a learner's two jobs and an instructor's."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmcourse import course
from llmcourse.course import CourseError


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
    check.add_argument("exercise", help="its number, as in 02, or its name")
    check.add_argument("notebook", nargs="?", type=Path, help="another copy than my_work/'s")
    check.set_defaults(run=_check)

    lab = commands.add_parser(
        "lab", help="copy the exercises into my_work/ once and open JupyterLab there"
    )
    lab.add_argument("--prepare-only", action="store_true", help="copy; do not open JupyterLab")
    lab.set_defaults(run=_lab)

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

    demo = commands.add_parser("demo-class", help="grade a class of six sample learners")
    demo.set_defaults(run=_demo)
    return parser


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


def _demo(options: argparse.Namespace, rest: list[str]) -> int:
    return int(_grading("demo").run(course.find_root()))


def _grading(module: str):  # type: ignore[no-untyped-def]
    """Import a part of llmcourse.grading, which needs the grade extra."""
    import importlib

    try:
        return importlib.import_module(f"llmcourse.grading.{module}")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("llmcourse"):
            raise
        raise CourseError(f"{error.name} is missing: pip install -e '.[grade]'") from None


if __name__ == "__main__":
    sys.exit(main())
