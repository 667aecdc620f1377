"""Calling a learner's function: nothing it prints, raises or borrows goes unnoticed."""

import contextlib
import contextvars
import functools
import io
import linecache
import logging
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, NoReturn

import torch
from torch.overrides import TorchFunctionMode, _len_torch_function_stack, _pop_mode

from llmcourse.checks.report import LONGEST, Check, fail, is_known, of_class

PACKAGE = Path(__file__).resolve().parents[1]
TORCH = f"{Path(torch.__file__).resolve().parent}{os.sep}"
OURS = ("llmcourse.checks", "llmcourse.grading")  # these run on our behalf


@dataclass
class Seen:
    """What a call may not do, and what it did of that."""

    forbid: tuple[str, ...]
    allow: tuple[str, ...]
    names: list[str] = field(default_factory=list)
    kept: bool = True  # the profile, to the end


_seen: contextvars.ContextVar[Seen | None] = contextvars.ContextVar("seen", default=None)
_part: contextvars.ContextVar[str] = contextvars.ContextVar("part", default="")


class _Watch(TorchFunctionMode):
    """Remembers which forbidden torch functions were called in this thread."""

    def __init__(self, forbidden: tuple[str, ...]) -> None:
        super().__init__()
        self.forbidden = forbidden
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = _bare(getattr(func, "__name__", ""))
        if name in self.forbidden:
            self.seen.append(f"torch's {name}")
        return func(*args, **(kwargs or {}))


class _Profile:
    """Remembers which modules of this package, and which forbidden parts of torch, ran.

    Other than `_Watch` it sees new threads, torch's functions that are written in Python
    (torch._refs), and calls with torch's overrides switched off; but no operator by its name.
    """

    def __init__(self, allow: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
        self.allow, self.forbidden = (*allow, *OURS), forbidden
        self.seen: list[str] = []

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            name = _bare(arg.__name__)
            if name in self.forbidden and _of_torch(arg):
                self.seen.append(f"torch's {name}")
        elif event == "call":
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if name in self.forbidden and file.startswith(TORCH):
                self.seen.append(f"torch's {name}")
            module = _refused(file, self.allow)
            if module:
                self.seen.append(module)


@functools.cache  # these two are asked at each step of a learner's code
def _bare(name: str) -> str:
    """A torch function's name without the marks of its variants: `_softmax`, `gelu_`."""
    return name.split(".")[0].strip("_").removeprefix("special_")  # gelu.default of torch.ops


@functools.cache
def _refused(file: str, allow: tuple[str, ...]) -> str:
    """The module of this package that a file is, unless learners may call it; else ""."""
    if not file.startswith(f"{PACKAGE}{os.sep}"):
        return ""
    parts = Path(file).relative_to(PACKAGE).with_suffix("").parts
    module = ".".join(("llmcourse", *(p for p in parts if p != "__init__")))
    fine = any(module == a or module.startswith(f"{a}.") for a in allow)
    return "" if fine else module


def _of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if issubclass(type(owner), torch.Tensor):
        return True
    return str(getattr(function, "__module__", "")).startswith("torch")


def call(
    it: Check, args: Any, *, convert: bool = True, then: Callable[[Any], Any] | None = None
) -> Any:
    """`then(function(*args))`; what a learner's code raises becomes a CheckFailed if `convert`.

    Fails also where the learner's code calls what is refused, or is not written yet.
    """
    sink, seen = io.StringIO(), Seen(it.forbid, it.allow)
    error = value = None
    try:
        with watching(seen, sink):
            value = it.function(*args)
            value = then(value) if then else value
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # also SystemExit: `exit()` in an answer ends no kernel
        error = raised
    it.printed.append(sink.getvalue())
    if seen.names:
        fail(it, f"calls {seen.names[0]}, which is not allowed here: do without it")
    if not seen.kept and not isinstance(error, RecursionError):  # which ends a profile too
        fail(it, "sets another profiler: checks need their own, to see what is called")
    if isinstance(error, NotImplementedError) and not error.args:
        fail(it, _unwritten(it, error))
    if error is not None and convert:
        fail_with(it, error, "raised")
    if error is not None:
        raise error
    return value


@contextlib.contextmanager
def watching(seen: Seen, sink: io.StringIO) -> Iterator[None]:
    """Run a learner's function: what it prints goes to `sink`, what it may not do to `seen`."""
    watch, profile, kept = _Watch(seen.forbid), _Profile(seen.allow, seen.forbid), [True]
    token = _seen.set(seen)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_caught(sink) if _part.get() else _quiet(sink))
            if _part.get() != "examiner":
                stack.enter_context(_as_it_was())
                stack.enter_context(_on_watch(watch))
                kept = stack.enter_context(_profiled(profile))
            yield
    finally:
        _seen.reset(token)
        seen.names = watch.seen + profile.seen + seen.names
        seen.kept = seen.kept and bool(kept)


@contextlib.contextmanager
def only(part: Literal["examiner", "learner"]) -> Iterator[None]:
    """This process is one part of two: the examiner, or the one where learners' code runs."""
    token = _part.set(part)
    try:
        yield
    finally:
        _part.reset(token)


def watched() -> Seen | None:
    """What the call that is under way may not do; a stand-in hands it on, and adds to it."""
    return _seen.get()


@contextlib.contextmanager
def _profiled(profile: _Profile) -> Iterator[list[bool]]:
    """Profile this thread and those it starts; the list is emptied if someone interferes."""
    before, before_threads = sys.getprofile(), threading.getprofile()
    kept = [True]
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield kept
    finally:
        if sys.getprofile() is not profile:
            kept.clear()
        sys.setprofile(before)
        threading.setprofile(before_threads)


@contextlib.contextmanager
def _on_watch(watch: _Watch) -> Iterator[None]:
    """Watch, and afterwards take away every torch function mode that was left on top."""
    watch.__enter__()
    try:
        yield
    finally:
        while _len_torch_function_stack() and _pop_mode() is not watch:
            pass


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """A learner's change of torch's default dtype or gradient mode ends with the call."""
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)


def fail_with(it: Check, error: BaseException, what: str) -> NoReturn:
    """The learner's exception: its class, its text, and the line of theirs it came from."""
    text = said(error)
    lines = [text[:LONGEST]]
    own, where = _own_frame(it, error), "in your line"
    if own is None:
        own, where = _own_frame(it, error, of_test=True), "in the line"
    if own is not None and own.line:
        lines.append(f"{where}  {own.line}")
    hint = ""
    if isinstance(error, RecursionError):
        hint = "it calls itself without end"
    elif "in-place operation" in text or "modified by an inplace" in text:
        hint = "it changes a tensor in place that the gradient still needs: make a new one"
    fail(it, f"{what} {of_class(type(error))}", hint=hint, shown="\n".join(lines))


def said(error: BaseException) -> str:
    """An exception's text, or what a class of the learner's lacks."""
    try:
        return _missing(error) or str(error)
    except Exception:  # of the learner's own class
        return ""


def _missing(error: BaseException) -> str:
    """What a class of the learner's lacks, and what it has instead; "" for other errors."""
    if not isinstance(error, AttributeError) or not isinstance(error.name, str):
        return ""
    owner = error.obj
    kind = owner if isinstance(owner, type) else type(owner)
    if is_known(kind):
        return ""
    names = {*vars(kind), *(getattr(owner, "__dict__", None) or ())}
    public = sorted(name for name in names if not str(name).startswith("_"))
    has = f"it has {', '.join(public)}" if public else "it has nothing of its own yet"
    return f"your class {kind.__name__} has no {error.name!r}; {has}"


def _unwritten(it: Check, error: BaseException) -> str:
    """Which of the learner's functions still waits: this one, or one that it calls."""
    still = "not written yet: it still raises NotImplementedError"
    own = _own_frame(it, error) or _own_frame(it, error, of_test=True)
    asked = getattr(it.function, "__code__", None)
    own_name = getattr(it.function, "__name__", "")
    if own is None or asked is None or own.code is asked or own.name == own_name:
        return f"is {still}"
    if it.of_test:
        return f"{own.name} is {still}"
    return f"calls {own.name}, which is {still}"


@dataclass(frozen=True)
class Frame:
    """A place in a learner's code: of which function, on which line; `code` if it is here."""

    name: str
    line: str
    code: CodeType | None = None


def _own_frame(it: Check, error: BaseException, *, of_test: bool = False) -> Frame | None:
    """The innermost of the learner's own frames; a stand-in's error brings it along."""
    told = getattr(error, "frame", None)
    if isinstance(told, Frame):
        return told
    return own_frame(error, skip=it.file if it.of_test and not of_test else None)


def own_frame(error: BaseException, skip: str | None = None) -> Frame | None:
    """The innermost frame of neither this package, an installed one, nor the file `skip`."""
    paths = sysconfig.get_paths()
    foreign = (str(PACKAGE), paths["stdlib"], paths["purelib"], paths["platlib"], "<frozen")
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        code = frame.f_code
        if code.co_filename != skip and not code.co_filename.startswith(foreign):
            name = code.co_qualname.rpartition("<locals>.")[2]
            return Frame(name, linecache.getline(code.co_filename, line).strip(), code)
    return None


@contextlib.contextmanager
def _quiet(sink: io.StringIO) -> Iterator[None]:
    """Catch what a learner's code prints: nbgrader reads anything on stderr as a failure."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a handler made earlier holds the kernel's own stderr
    with _caught(sink), _no_stderr():
        try:
            yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def _caught(sink: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        yield


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
