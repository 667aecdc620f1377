"""The two parties of a grading: a submission in the sandbox, and the examiner, who asks it.

The examiner runs the locked cells, as restored from the gradebook, in a process of its own
outside the sandbox. Where they name a learner's function, a stand-in calls into the sandbox as
it stands at that place of the notebook. A graded cell counts only if the examiner says that
this very cell ran to its end.
"""

import ast
import builtins
import contextlib
import gc
import io
import json
import linecache
import multiprocessing
import os
import re
import resource
import signal
import symtable
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, TextIO

from llmcourse.checks import CheckFailed, guard
from llmcourse.grading.sandbox import Limits, Sandbox, SandboxError
from llmcourse.grading.standins import Link, ProcessEnded
from llmcourse.grading.zoo import HIDDEN

SAID = 100_000  # characters that an examiner's cell may print
SHOWN = 3_000_000  # characters of all outputs of a learner's cell, as JSON
MOST_OUTPUT = 20 * 2**20  # and of all of a learner's cells together
MEMORY = 8 * 2**30  # bytes for an examiner, whatever a learner's function returned
PATIENCE = 20  # seconds that an examiner may take for itself
UNSTEADY = ("this check passes, but not when it runs after hidden tests: does your function "
            "remember earlier calls, or depend on time or chance?")  # fmt: skip
MORE = "(more than fits here)\n"
UNFINISHED = "this check could not be finished, as your notebook's process ended"
LONGEST = 100_000  # characters of a learner's cell that are searched for names of checks
WORD = re.compile(r"#.*|(\w+)")  # of a cell with magics, which is no Python
Cell = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A code cell as the two parties see it.

    key: tells it from the others. source: what it holds.
    locked: the course's own; graded: a locked one that is scored.
    """

    key: str
    source: str
    locked: bool = False
    graded: bool = False


@dataclass
class Result:
    """What became of a notebook.

    outputs: key -> the cell's outputs, in nbformat's form, of every cell that ran to its end.
    in_hidden: keys of the cells that failed in a hidden test.
    after_end: keys of the cells during or before which the learner's process ended.
    cut: whether learner's cells showed more than fits.
    ended: why the learner's process ended early, or "".
    """

    outputs: dict[str, list[Cell]] = field(default_factory=dict)
    in_hidden: set[str] = field(default_factory=set)
    after_end: set[str] = field(default_factory=set)
    cut: bool = False
    ended: str = ""


def examine(parts: list[Part], sandbox: Sandbox, limits: Limits) -> Result:
    """Run a notebook: the learner's cells in the sandbox, the graded ones out here.

    Twice, from the start. What a learner may see comes from a run without hidden tests: no
    hidden input can be in it, not even one that a function remembered. What counts comes from
    the run with all of them. Raises SandboxError when the sandbox or the examiner breaks.
    """
    first = _run_all([*map(_public, parts)], sandbox, limits, MOST_OUTPUT)
    second = _run_all(parts, sandbox, limits, room=0)  # of this one, scores are all that counts
    for part in parts:
        if part.graded and part.key in second.outputs:
            judged = _judged(part, first.outputs.get(part.key, []), second)
            first.outputs[part.key] = judged
        elif part.graded:
            first.outputs.pop(part.key, None)
    return Result(first.outputs, cut=first.cut, ended=first.ended or second.ended)


def _public(part: Part) -> Part:
    """A cell as learners have it: a check without its hidden tests."""
    return replace(part, source=HIDDEN.sub("", part.source)) if part.graded else part


def _judged(part: Part, seen: list[Cell], second: Result) -> list[Cell]:
    """What a graded cell shows: `seen` without its hidden tests, the verdict with them."""
    failures = [out for out in second.outputs[part.key] if _is_failure(out)]
    fine = [out for out in seen if not _is_failure(out)]
    if not failures or part.key in second.in_hidden:
        return fine + failures
    if any(map(_is_failure, seen)):
        return seen
    if part.key in second.after_end:
        return [*fine, error_output("ProcessEnded", f"{UNFINISHED}: {second.ended}")]
    said = "\n".join(line for out in failures for line in out.get("traceback", []))
    return [*fine, error_output("CheckFailed", UNSTEADY, said)]


def _is_failure(out: Cell) -> bool:
    return out["output_type"] == "error" or out.get("name") == "stderr"


def _run_all(parts: list[Part], sandbox: Sandbox, limits: Limits, room: int) -> Result:
    """Once, from the start. room: for all that learner's cells show, in characters as JSON."""
    public = [*map(_public, parts)]
    words = frozenset(w for part in public for w in re.findall(r"\w+", part.source))
    of_checks = _bound(public, graded=True) - _bound(public, graded=False)
    link = Link(sandbox.open(limits), limits.cell, sandbox.interrupt, words, of_checks)
    result = Result()
    try:
        _ask_about_everything(parts, link, limits, result, room)
    finally:
        link.channel.close()
        result.ended = sandbox.close(gone=bool(result.ended)) or result.ended
    return result


def _ask_about_everything(
    parts: list[Part], link: Link, limits: Limits, result: Result, room: int
) -> None:
    """The examiner proper, in a process of its own; it reports cell by cell."""
    until = time.monotonic() + limits.wall + limits.cell + PATIENCE
    ours, theirs = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            gc.freeze()  # collections need not look at what was there before
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            _examiner(parts, link, theirs, room)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    late = False
    try:
        while not late:
            late = not ours.poll(max(0.0, until - time.monotonic()))
            if not late:
                _take(json.loads(ours.recv_bytes()), result)
    except EOFError:
        pass
    finally:
        ours.close()
        status = _end(pid, at_once=late)
    if late:
        raise SandboxError("what this notebook returned keeps the examiner busy without end")
    if status or len(result.outputs) < len(parts):
        raise SandboxError(f"the examiner ended early (status {status})")


def _end(pid: int, *, at_once: bool) -> int:
    if at_once:
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _take(report: list[Any], result: Result) -> None:
    key, outputs, in_hidden, cut, result.ended = report
    result.outputs[key] = outputs
    result.cut |= cut
    if in_hidden:
        result.in_hidden.add(key)
    if result.ended:
        result.after_end.add(key)


def _examiner(parts: list[Part], link: Link, tell: Connection, room: int) -> None:
    """Run the cells, and report each when it has ended.

    Graded cells show all: their scores are read from it. What learner's cells show has room.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    ours: set[str] = set()  # the names that locked cells bind, whether or not they get there
    wanted = _checks_that_learners_use(parts)
    with _warnings_on_stderr(), guard.only("examiner"):
        for number, part in enumerate(parts):
            outputs, in_hidden = [error_output("NotRun", "this check did not run")], False
            cut = False
            if part.locked:
                outputs, in_hidden = _run(part, number, space, ours, link)
            if not part.graded:
                outputs = _show(part, link)
                room -= len(json.dumps(outputs))
                cut = room < 0 and bool(outputs)
                outputs = [stream("stdout", MORE)] if cut else outputs
            elif part.key in wanted:
                _lend(_public(part), link)
            report = [part.key, outputs, in_hidden, cut, link.ended]
            tell.send_bytes(json.dumps(report).encode())


def _show(part: Part, link: Link) -> list[Cell]:
    """Run a cell in the sandbox; what it shows."""
    try:
        return list(clean_outputs(link.run(part.source)))
    except ProcessEnded as error:
        return [error_output("ProcessEnded", f"this cell did not run: {error}")]


def _lend(part: Part, link: Link) -> None:
    """Make a check's names in the sandbox too; what it checks is not checked again."""
    for statement in ast.parse(part.source).body:
        if not isinstance(statement, ast.Expr):
            with contextlib.suppress(ProcessEnded):
                link.run(ast.unparse(statement))


def _run(
    part: Part, number: int, space: dict[str, Any], ours: set[str], link: Link
) -> tuple[list[Cell], bool]:
    """Run one locked cell: what it prints and raises, and whether a hidden test raised it."""
    printed, complained = io.StringIO(), io.StringIO()
    name = f"<cell {number}>"
    linecache.cache[name] = (len(part.source), None, part.source.splitlines(True), name)
    error: BaseException | None = None
    used, bound = _names(part.source)
    wanted = sorted(n for n in used - bound - ours - space.keys() if not hasattr(builtins, n))
    try:
        space.update(link.names(wanted))
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            exec(compile(part.source, name, "exec"), space)
        link.forget()
    except BaseException as raised:
        error = raised
    for one in wanted:
        space.pop(one, None)
    ours |= bound
    streams = {"stdout": printed.getvalue(), "stderr": complained.getvalue()}
    outputs = [stream(n, text[:SAID]) for n, text in streams.items() if text]
    outputs += [_told(error)] if error else []
    return outputs, error is not None and _is_hidden(error, part.source, name)


def _is_hidden(error: BaseException, source: str, name: str) -> bool:
    """Whether an error passed the cell's hidden tests, which censor what it says."""
    places = [
        (source[: m.start()].count("\n") + 1, source[: m.end()].rstrip().count("\n") + 1)
        for m in HIDDEN.finditer(source)
    ]
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == name]
    return any(first <= line <= last for line in lines[:1] for first, last in places)


def _bound(parts: list[Part], *, graded: bool) -> set[str]:
    """The names that the course's own cells bind, graded ones or the others."""
    locked = [part for part in parts if part.locked and part.graded is graded]
    return {name for part in locked for name in _names(part.source)[1]}


def _checks_that_learners_use(parts: list[Part]) -> set[str]:
    """Graded cells that make names which later cells of a learner's use, and no earlier make.

    In one kernel these are there once the check has run.
    """
    found: set[str] = set()
    used: set[str] = set()
    own = [_names(part.source[:LONGEST]) for part in parts if not part.locked]
    for part in reversed(parts):
        if not part.locked:
            used |= own.pop()[0] or set(WORD.findall(part.source[:LONGEST]))
        elif part.graded:
            made = {name for _, bound in own for name in bound}
            if (used - made) & _names(_public(part).source)[1]:
                found.add(part.key)
    return found


def _names(source: str) -> tuple[set[str], set[str]]:
    """The global names that a cell uses, in functions too, and those that it binds itself."""
    used: set[str] = set()
    bound: set[str] = set()
    try:
        cell = symtable.symtable(source, "<cell>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # running it says so
        return used, bound
    tables = [cell]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is cell or symbol.is_global():
                if symbol.is_referenced():
                    used.add(symbol.get_name())
                if symbol.is_assigned() or symbol.is_imported():
                    bound.add(symbol.get_name())
    return used, bound


def _told(error: BaseException) -> Cell:
    """An error as the instructor sees it; what learners see of it is feedback's business."""
    if isinstance(error, CheckFailed):
        return error_output("CheckFailed", str(error), (error.details or str(error)))
    name = type(error).__name__
    name = "Error" if name == "CheckFailed" else name  # a learner's, who may not speak as we do
    try:
        trace = "".join(traceback.format_exception(error))
        return error_output(name, str(error), trace)
    except Exception:  # made of what a learner sent, it may be as odd as that
        return error_output(name, "an error that cannot be told")


def error_output(name: str, text: str, trace: str = "") -> Cell:
    """An error in nbformat's form."""
    name, text = writable(name), writable(text)
    lines = [writable(line) for line in trace.splitlines()] or text.splitlines()
    return {"output_type": "error", "ename": name, "evalue": text, "traceback": lines}


def stream(name: str, text: str) -> Cell:
    """Printed text in nbformat's form."""
    return {"output_type": "stream", "name": name, "text": writable(text)}


def writable(text: str) -> str:
    """The text without halves of characters, which no file in UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


MIMES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/jpeg",
         "image/svg+xml")  # fmt: skip
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")


def clean_outputs(outputs: list[Any]) -> Iterator[Cell]:
    """The outputs that a worker sent, rebuilt from the parts that are as they must be."""
    left = SHOWN
    for out in outputs[:200]:
        made = _clean(out)
        left -= len(json.dumps(made))
        if left < 0:
            yield stream("stdout", MORE)
            return
        if made:
            yield made


def _clean(out: Any) -> Cell | None:
    match out:
        case {"output_type": "stream", "name": ("stdout" | "stderr") as name, "text": str(t)}:
            return stream(name, t)
        case {"output_type": "error", "ename": str(n), "evalue": str(v), "traceback": list(t)}:
            return error_output(n, v, "\n".join(line for line in t if isinstance(line, str)))
        case {"output_type": ("display_data" | "execute_result") as kind, "data": dict(d)}:
            shown = {mime: writable(d[mime]) for mime in MIMES if _is_fine(mime, d.get(mime))}
            made = {"output_type": kind, "data": shown, "metadata": {}}
            return made | ({"execution_count": None} if kind == "execute_result" else {})
    return None


def _is_fine(mime: str, x: Any) -> bool:
    """Whether a page may hold it: an image is written into an attribute as it stands."""
    binary = mime in ("image/png", "image/jpeg")
    return isinstance(x, str) and (not binary or bool(BASE64.fullmatch(x)))


@contextlib.contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """A warning in a graded cell is text on standard error there, as in a kernel."""

    def tell(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    with warnings.catch_warnings():
        warnings.showwarning = tell
        yield
