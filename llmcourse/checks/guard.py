"""Calling a learner's function: nothing it prints, raises or borrows goes unnoticed."""

import contextlib
import io
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from torch.overrides import TorchFunctionMode

from llmcourse.checks.report import LONGEST, Check, fail

PACKAGE = Path(__file__).resolve().parents[1]
OURS = ("llmcourse.checks", "llmcourse.grading")  # these run on our behalf


class _Watch(TorchFunctionMode):
    """Remembers which forbidden torch functions were called."""

    def __init__(self, forbidden: tuple[str, ...]) -> None:
        super().__init__()
        self.forbidden = forbidden
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]  # "gelu.default" of torch.ops
        if name in self.forbidden:
            self.seen.append(f"torch's {name}")
        return func(*args, **(kwargs or {}))


class _Profile:
    """Remembers which modules of this package ran."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self.allow = (*allow, *OURS)
        self.seen: list[str] = []
        self.root = f"{PACKAGE}{os.sep}"

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(self.root):
            return
        parts = Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("").parts
        module = ".".join(("llmcourse", *(p for p in parts if p != "__init__")))
        if not any(module == a or module.startswith(f"{a}.") for a in self.allow):
            self.seen.append(module)


def call(
    it: Check, args: Any, *, convert: bool = True, then: Callable[[Any], Any] | None = None
) -> Any:
    """`then(function(*args))`; what a learner's code raises becomes a CheckFailed if `convert`.

    Fails also where the learner's code calls what is refused, or is not written yet.
    """
    sink, watch, profile = io.StringIO(), _Watch(it.forbid), _Profile(it.allow)
    error = value = None
    before = sys.getprofile()
    try:
        with _quiet(sink), watch:
            sys.setprofile(profile)
            try:
                value = it.function(*args)
                value = then(value) if then else value
            finally:
                sys.setprofile(before)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # also SystemExit: `exit()` in an answer ends no kernel
        error = raised
    it.printed.append(sink.getvalue())
    if profile.seen or watch.seen:
        fail(it, f"calls {(profile.seen + watch.seen)[0]}, which is what you are to write")
    if isinstance(error, NotImplementedError):
        fail(it, _unwritten(it, error))
    if error is not None and convert:
        fail_with(it, error, "raised")
    if error is not None:
        raise error
    return value


def fail_with(it: Check, error: BaseException, what: str) -> NoReturn:
    """The learner's exception: its class, its text, and the line of theirs it came from."""
    own = _own_line(error)
    shown = str(error)[:LONGEST] + (f"\nin your line  {own}" if own else "")
    hint = ""
    if isinstance(error, RecursionError):
        hint = "it calls itself without end"
    elif "in-place operation" in str(error) or "modified by an inplace" in str(error):
        hint = "it changes a tensor in place that the gradient still needs: make a new one"
    fail(it, f"{what} {type(error).__name__}", hint=hint, shown=shown)


def _unwritten(it: Check, error: BaseException) -> str:
    """Which of the learner's functions still waits: this one, or one that it calls."""
    own = _own_frame(error)
    if own is None or own.name in (getattr(it.function, "__name__", own.name), "<lambda>"):
        return "is not written yet: it still raises NotImplementedError"
    return f"calls {own.name}, which is not written yet: it still raises NotImplementedError"


def _own_line(error: BaseException) -> str:
    own = _own_frame(error)
    return (own.line or "") if own else ""


def _own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame that belongs to neither this package nor an installed one."""
    paths = sysconfig.get_paths()
    foreign = (str(PACKAGE), paths["stdlib"], paths["purelib"], paths["platlib"], "<frozen")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(foreign):
            return frame
    return None


@contextlib.contextmanager
def _quiet(sink: io.StringIO) -> Iterator[None]:
    """Catch what a learner's code prints: nbgrader reads anything on stderr as a failure."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a handler made earlier holds the kernel's own stderr
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), _no_stderr():
        try:
            yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Drop what compiled code writes to the file descriptor itself."""
    try:
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # no standard error to begin with
        yield
        return
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
