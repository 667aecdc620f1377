"""The examiner's side of a learner's functions: stand-ins that call into the sandbox.

A stand-in takes and returns data, and is called as the function itself would be: what it
raises, prints, changes in its arguments and how its answer depends on them come along. Tensors
that the examiner sent keep their identity on the other side, so that a learner's code that
holds on to one sees its later changes.
"""

import builtins
import inspect
import keyword
import re
import types
import weakref
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor

from llmcourse.checks import data, guard
from llmcourse.checks.guard import Frame
from llmcourse.grading.wire import Channel, Packer, Unpacker, WireError

PYTHONS = ("generator", "coroutine", "async_generator")  # types that have no name in builtins
NAMELESS = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


class ProcessEnded(Exception):  # noqa: N818, learners read its name
    """The learner's process is gone, silent for too long, or talks nonsense."""


class Handle:
    """An object of a learner's class, in the sandbox; its attributes are asked for there."""

    def __init__(self, link: "Link", number: int) -> None:
        self.__dict__["_link"], self.__dict__["_number"] = link, number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.attribute(self._number, name, self)


class CallableHandle(Handle):
    """One that can be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._link.call(self._number, args, kwargs)


Handle.__module__ = CallableHandle.__module__ = "__main__"  # a learner's, as messages see it


class Link:
    """A conversation with one worker. Raises ProcessEnded when it is over.

    seconds: for one answer. on_silence: called once when an answer does not come in time; if it
    helps, the conversation goes on. words: the names that may be told of a learner's things,
    Python's own besides; a name made up while a test runs could carry a hidden input.
    of_checks: names that visible checks make for themselves.
    """

    def __init__(
        self, channel: Channel, seconds: float, on_silence: Callable[[], None] | None = None,
        words: Container[str] = (), of_checks: Container[str] = (),
    ) -> None:  # fmt: skip
        self.channel, self.seconds, self.on_silence = channel, seconds, on_silence
        self.words, self.of_checks, self.ended = words, of_checks, ""
        self._late = False  # whether the answer had to be asked for with an interrupt
        self._asked = 0
        self._sent: dict[int, _Sent] = {}
        self._numbers: dict[int, int] = {}  # of tensors, by id, while they live
        self._dropped: list[int] = []
        self._next = 0

    def run(self, source: str) -> list[Any]:
        """Run a cell; returns its outputs, unchecked.

        A cell that makes float64 torch's default makes it the checks' too, as in one kernel; a
        default with fewer digits, which would be judged more mildly, it may have for itself.
        """
        reply = self._ask({"do": "run", "source": source})[0]
        wide = reply.get("default") == "torch.float64"
        torch.set_default_dtype(torch.float64 if wide else torch.float32)
        outputs = reply.get("outputs")
        outputs = outputs if isinstance(outputs, list) else []
        if self._late:
            text = f"(stopped after {self.seconds:g} s)\n"
            outputs.append({"output_type": "stream", "name": "stderr", "text": text})
        return outputs

    def names(self, wanted: Sequence[str]) -> dict[str, Any]:
        """What the learner's notebook has under these names: stand-ins, objects and data."""
        reply, unpacker = self._ask({"do": "names", "names": list(wanted)})
        found = reply.get("names")
        if not isinstance(found, dict):
            raise self._end("names that are none")
        return {n: self._unpack(unpacker, found[n]) for n in wanted if n in found}

    def forget(self) -> None:
        """Let go of everything that was sent or returned so far."""
        self._sent.clear()
        self._numbers.clear()
        self._dropped.clear()
        self._ask({"do": "forget"})

    def attribute(self, number: int, name: str, owner: Handle) -> Any:
        """An attribute of an object over there."""
        message = {"do": "attribute", "object": number, "name": name}
        reply, unpacker = self._ask(message | self._conditions())
        value = self._outcome(reply, unpacker)
        own = isinstance(value, types.FunctionType) and hasattr(value, "of_owner")
        return types.MethodType(value.of_owner, owner) if own else value

    def call(self, number: int, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function or object over there with data."""
        inputs = [x for _, x in data.leaves((args, kwargs))
                  if isinstance(x, Tensor) and x.requires_grad]  # fmt: skip
        if not inputs or not torch.is_grad_enabled():
            return self._call(number, args, kwargs)[0]
        return _differentiable(self, number, args, kwargs, inputs)

    def _call(
        self, number: int, args: Sequence[Any], kwargs: dict[str, Any], graph: bool = False
    ) -> tuple[Any, int | None]:
        """The answer, and the number of its graph."""
        packer = Packer(lambda p, x: self._pack(p, x, graph))
        message = {
            "do": "call", "object": number, "args": packer.pack((tuple(args), kwargs)),
            "changed": [[n, packer.pack(x)] for n, x in self._changed()],
            "dropped": self._dropped, "grad": torch.is_grad_enabled(),
        }  # fmt: skip
        self._dropped = []
        reply, unpacker = self._ask(message | self._conditions(), packer.blob)
        if "left" in reply:
            self._write_back((tuple(args), kwargs), self._unpack(unpacker, reply["left"]))
        answer = self._outcome(reply, unpacker)
        kept = reply.get("graph")
        return answer, kept if type(kept) is int else None

    def gradient(self, graph: int, cotangents: list[Tensor | None]) -> list[Any]:
        """The vector-Jacobian product of the call with that graph."""
        packer = Packer()
        message = {"do": "gradient", "graph": graph, "cotangents": packer.pack(cotangents)}
        reply, unpacker = self._ask(message | self._conditions(), packer.blob)
        value = self._outcome(reply, unpacker)
        return value if isinstance(value, list) else []

    def _conditions(self) -> dict[str, Any]:
        seen = guard.watched()
        return {"forbid": list(seen.forbid), "allow": list(seen.allow)} if seen else {}

    def _ask(
        self, message: dict[str, Any], blob: bytes | bytearray = b""
    ) -> tuple[dict[str, Any], Unpacker]:
        if self.ended:
            raise ProcessEnded(self.ended)
        self._asked += 1
        try:
            self.channel.send(message | {"number": self._asked}, blob)
            reply, raw = self._receive()
        except WireError as error:
            raise self._end(str(error)) from None
        if reply.get("to") != self._asked:
            raise self._end("an answer to another question")
        unpacker = Unpacker(raw, self._unpack_other)
        self._follow(reply.get("changed", []), unpacker)
        return reply, unpacker

    def _follow(self, changed: Any, unpacker: Unpacker) -> None:
        """The learner's code changed tensors that it had returned: so do ours."""
        pairs = changed if isinstance(changed, list) else []
        for number, packed in (p for p in pairs if type(p) is list and len(p) == 2):
            new = self._unpack(unpacker, packed)
            mine = self._sent.get(number) if type(number) is int and number < 0 else None
            x = mine.tensor() if mine else None
            if mine and x is not None and isinstance(new, Tensor):
                data.assign(x, new)
                mine.version = x._version

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        self._late = not self.channel.waits(self.seconds)
        if self._late and self.on_silence:
            self.on_silence()
        return self.channel.receive(2.0 if self._late else self.seconds)

    def _end(self, why: str) -> ProcessEnded:
        self.ended = self.ended or why
        self.channel.close()
        return ProcessEnded(self.ended)

    def _outcome(self, reply: dict[str, Any], unpacker: Unpacker) -> Any:
        """The value, or the exception; what was printed and called on the way is passed on."""
        printed, seen = reply.get("printed"), guard.watched()
        if isinstance(printed, str) and printed:
            print(printed[: guard.LONGEST], end="")
        if seen:
            names = reply.get("seen")
            seen.names += _called(names, seen.forbid) if isinstance(names, list) else []
            # An interrupt may hit the profiler itself, which ends it.
            seen.kept = seen.kept and (self._late or reply.get("kept") is not False)
        if "error" in reply:
            told = reply["error"] if isinstance(reply["error"], dict) else {}
            if self._late:
                told |= {"names": ["TimeoutError"], "text": f"stopped after {self.seconds:g} s"}
            raise self._exception(told)
        return self._unpack(unpacker, reply.get("value"))

    def _pack(self, packer: Packer, x: Any, graph: bool) -> Any:
        """A tensor: by its number if it is there already, else whole, with how it lies."""
        if isinstance(x, Handle):
            return ["O", x._number]
        if type(x) not in (Tensor, torch.nn.Parameter):
            raise WireError(f"a {type(x).__name__} is no data")
        leaf = graph and x.requires_grad
        number = None if leaf else self._numbers.get(id(x))
        if number is not None and self._sent[number].version == x._version:
            return ["R", number]
        number = None if leaf else self._next
        if number is not None:
            self._next += 1
            self._remember(x, number)
        whole = x.is_contiguous() or 0 in x.stride()
        return [*packer.tensor(x), number, None if whole else list(x.stride()), leaf]

    def _remember(self, x: Tensor, number: int) -> None:
        key = id(x)
        self._sent[number] = _Sent(
            weakref.ref(x, lambda _: self._drop(key, number)), x._version
        )
        self._numbers[key] = number

    def _drop(self, key: int, number: int) -> None:
        self._sent.pop(number, None)
        if self._numbers.get(key) == number:
            del self._numbers[key]
            self._dropped.append(number)

    def _changed(self) -> list[tuple[int, Tensor]]:
        """The tensors over there whose originals have changed since."""
        found = []
        for number, sent in self._sent.items():
            x = sent.tensor()
            if x is not None and x._version != sent.version:
                sent.version = x._version
                found.append((number, x.detach()))
        return found

    def _write_back(self, args: Any, left: Any) -> None:
        """What the call left in its arguments: in place, as a call does."""
        if isinstance(args, Tensor) and isinstance(left, Tensor):
            if data.same(args.detach(), left):
                return
            data.assign(args, left)
            number = self._numbers.get(id(args))
            if number is not None:
                self._sent[number].version = args._version
        elif isinstance(args, tuple) and isinstance(left, tuple) and len(args) == len(left):
            for mine, theirs in zip(args, left, strict=True):
                self._write_back(mine, theirs)
        elif isinstance(args, list) and isinstance(left, list):
            for mine, theirs in zip(args, left, strict=False):
                self._write_back(mine, theirs)
            args[:] = [_either(m, t) for m, t in zip(args, left, strict=False)] + left[
                len(args) :
            ]
            del args[len(left) :]
        elif isinstance(args, dict) and isinstance(left, dict):
            for key in args.keys() & left.keys():
                self._write_back(args[key], left[key])
            new = {k: _either(args[k], x) if k in args else x for k, x in left.items()}
            args.clear()
            args.update(new)

    def _unpack(self, unpacker: Unpacker, x: Any) -> Any:
        try:
            return unpacker.unpack(x)
        except WireError as error:
            raise self._end(str(error)) from None

    def _unpack_other(self, unpacker: Unpacker, x: list) -> Any:
        match x:
            case ["T", str(kind), list(shape), start, size, bool(has_graph), *number]:
                tensor = unpacker.tensor(kind, shape, start, size)
                match number:
                    case [int(new)] if new < 0 and new not in self._sent:
                        self._remember(tensor, new)
                if has_graph and (tensor.is_floating_point() or tensor.is_complex()):
                    tensor.from_graph = True  # type: ignore[attr-defined]
                return tensor
            case ["o", int(number), str(kind), str(name), list(names), list(params), bool(can)]:
                return self._object(number, kind, name, names, params, can)
        raise WireError("not a value")

    def _object(
        self, number: int, kind: str, name: str, names: list, params: list, can: bool
    ) -> Any:
        if kind == "object":
            words = [n for n in names if self._is_name(n)] or ["object"]
            base = CallableHandle if can else Handle
            return type(words[0], (base,), {"__module__": "__main__"})(self, number)
        name = name if self._is_name(name) else "function"
        known = len(set(map(str, params))) == len(params) and all(map(self._is_name, params))
        return _function(self, number, name, params if known else [], method=kind == "method")

    def _exception(self, told: dict[str, Any]) -> Exception:
        """An exception of the class that was named, as far as Python has it, else a new one."""
        said = told.get("names")
        listed = said if isinstance(said, list) else []
        names = [n for n in listed if self._is_name(n)] or ["Exception"]
        text = str(told.get("text") or "")
        missing = re.fullmatch(r"name '(\w+)' is not defined.*", text)
        if missing and missing[1] in self.of_checks:
            text = f"{missing[1]} is a check's own name: make one of yours in your cell"
        known: list[Any] = [getattr(builtins, n, None) for n in names]
        base: type[Exception] = next((c for c in known if _is_exception(c)), Exception)
        if names[0] == "OutOfMemoryError":
            base = RuntimeError
        parts = {"__str__": lambda self: text, "__module__": "__main__"}
        kind: Any = type(names[0], (base,), parts)
        error: Exception = kind.__new__(kind, *([text] if text else []))
        if isinstance(error, AttributeError):
            error.obj = None  # or Python would put the stand-in there
        match told.get("where"):
            case [str(name), str(line)] if self._is_place(name):
                error.frame = Frame(name, line[:200])  # type: ignore[attr-defined]
        return error

    def _is_name(self, x: Any) -> bool:
        plain = isinstance(x, str) and x.isidentifier() and len(x) <= 60
        known = plain and (x in self.words or x in PYTHONS or hasattr(builtins, x))
        return known and not keyword.iskeyword(x)

    def _is_place(self, x: str) -> bool:
        """Whether x is where a learner's function stands: Page.append, read.<lambda>."""
        parts = x.split(".")
        return len(parts) < 5 and all(p in NAMELESS or self._is_name(p) for p in parts)


class _Sent:
    """A tensor that is over there, and which of its versions."""

    def __init__(self, tensor: "weakref.ref[Tensor]", version: int) -> None:
        self.tensor, self.version = tensor, version


def _either(mine: Any, theirs: Any) -> Any:
    """What was written back in place stays the same object."""
    containers = (Tensor, list, dict, tuple)
    alike = isinstance(mine, containers) and type(mine) is type(theirs)
    return mine if alike or isinstance(theirs, Handle) else theirs


def _is_exception(kind: Any) -> bool:
    """Whether Python can make one of that class from a text, as it does for learners."""
    groups = ("BaseExceptionGroup", "ExceptionGroup")
    return isinstance(kind, type) and issubclass(kind, Exception) and (
        kind.__name__ not in groups)  # fmt: skip


def _called(names: list, forbid: Sequence[str]) -> list[str]:
    """What a call did that it may not, in no words but ours."""
    ours = {f"torch's {name}" for name in forbid}
    return [n if n in ours or _is_module(n) else "something" for n in map(str, names[:1])]


def _is_module(name: str) -> bool:
    if not re.fullmatch(r"llmcourse(\.\w{1,40}){0,5}", name):
        return False
    path = guard.PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _function(link: Link, number: int, name: str, params: list, method: bool) -> Any:
    """A stand-in with the learner's name and, for messages, its parameters' names."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return link.call(number, args, kwargs)

    def of_owner(_: Handle, *args: Any, **kwargs: Any) -> Any:
        return link.call(number, args, kwargs)

    made: Any = stand_in
    for one in (stand_in, of_owner):
        one.__name__ = one.__qualname__ = name
        one.__module__ = "__main__"
    if method:
        made.of_owner = of_owner
    if params:
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
        made.__signature__ = inspect.Signature([inspect.Parameter(p, kinds) for p in params])
    return made


def _differentiable(
    link: Link, number: int, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor]
) -> Any:
    """The call as one step of autograd: its backward asks the sandbox for the product."""
    answer: Any = None

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
            nonlocal answer
            with torch.enable_grad():
                answer, ctx.graph = link._call(number, args, kwargs, graph=True)
            outputs = [x for _, x in data.leaves(answer) if isinstance(x, Tensor)]
            ctx.has_graph = [hasattr(x, "from_graph") for x in outputs]
            cut = [x for x, has in zip(outputs, ctx.has_graph, strict=True) if not has]
            ctx.mark_non_differentiable(*cut)
            ctx.set_materialize_grads(False)
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
            got = link.gradient(ctx.graph, list(cotangents))
            return tuple(
                g
                if isinstance(g, Tensor) and g.shape == x.shape and g.dtype == x.dtype
                else None
                for g, x in zip([*got, *[None] * len(inputs)], inputs, strict=False)
            )

    outputs = list(Call.apply(*inputs))
    return data.map_tensors(lambda _: outputs.pop(0), answer)
