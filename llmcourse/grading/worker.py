"""In the sandbox: a learner's cells and functions, run for the examiner.

This file shares a process with a learner's code and is as trustworthy as that: the examiner
believes nothing that comes from here but that it came from there.
"""

import contextlib
import inspect
import io
import json
import os
import signal
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any

import torch
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from torch import Tensor

from llmcourse.checks import data, guard
from llmcourse.grading.wire import Channel, Packer, Unpacker, WireError, raw

MOST_OUTPUTS = 200  # of a cell; and characters of all its outputs together:
MOST_TEXT = 2_000_000
CORES = 8  # of the machine, as far as a learner's code can see
LONGEST = 2000  # characters of an error's text, and of what a call prints


class Outputs:
    """What a cell shows, in its order, up to a limit."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.left = MOST_TEXT

    def write(self, name: str, text: str) -> None:
        text = self._cut(str(text))
        last = self.items[-1] if self.items else {}
        if text and last.get("output_type") == "stream" and last["name"] == name:
            last["text"] += text
        elif text:
            self.add({"output_type": "stream", "name": name, "text": text})

    def add(self, output: dict[str, Any]) -> None:
        if len(self.items) < MOST_OUTPUTS:
            self.items.append(output)

    def show(self, kind: str, bundle: dict[str, Any], count: int | None = None) -> None:
        shown = {mime: x for mime, x in bundle.items() if self._cut(_text(x)) == _text(x)}
        output = {"output_type": kind, "data": shown, "metadata": {}}
        self.add(output | ({"execution_count": count} if kind == "execute_result" else {}))

    def _cut(self, text: str) -> str:
        text, self.left = text[: max(0, self.left)], self.left - len(text)
        return text


def _text(x: Any) -> str:
    return x if isinstance(x, str) else json.dumps(x)


class _Stream(io.TextIOBase):
    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, text: str) -> int:
        _outputs.write(self.name, text)
        return len(text)

    def writable(self) -> bool:
        return True


class _Sink(io.StringIO):
    """Keeps the beginning of what a call prints, however long it goes on."""

    def write(self, text: str) -> int:
        super().write(text[: max(0, LONGEST - self.tell())])
        return len(text)


_outputs = Outputs()


class _Publisher(DisplayPublisher):
    def publish(self, data: Any, metadata: Any = None, source: Any = None, **_: Any) -> None:
        _outputs.show("display_data", data)

    def clear_output(self, wait: bool = False) -> None:
        _outputs.items.clear()


class _Hook(DisplayHook):
    def start_displayhook(self) -> None:
        pass

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        _outputs.show("execute_result", format_dict, self.prompt_count)

    def finish_displayhook(self) -> None:
        pass


class Shell(InteractiveShell):
    """IPython as in a notebook, its output gathered instead of shown."""

    display_pub_class = _Publisher
    displayhook_class = _Hook

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        lines = [str(line) for line in stb] if isinstance(stb, list) else [str(stb)]
        text = "\n".join(lines)[:20_000]
        _outputs.add({"output_type": "error", "ename": _name(etype), "evalue": _said(evalue),
                      "traceback": text.split("\n")})  # fmt: skip

    def enable_gui(self, gui: Any = None) -> None:
        pass

    def ask_exit(self) -> None:
        raise SystemExit

    def system_piped(self, cmd: str) -> None:
        import subprocess

        done = subprocess.run(cmd, shell=True, stdin=subprocess.DEVNULL, capture_output=True)
        for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
            _outputs.write(name, text.decode(errors="replace"))

    system = system_piped


def _name(kind: type) -> str:
    return str(getattr(kind, "__name__", "Error"))[:100]


def _said(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST]
    except Exception:  # of a class of the learner's
        return ""


class _Masked:
    """What stands for the package's own functions while an exercise is graded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{self.name} is not there while an exercise is graded")

    __call__ = __getattr__ = __getitem__ = __iter__ = _refuse


class _MaskedModules:
    """Finds every module of the package that bubblewrap left out: empty, but importable."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith("llmcourse."):
            return None
        return ModuleSpec(name, _MaskedModules, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _attribute(spec.name, name)  # type: ignore[method-assign]
        return module

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        pass


def _attribute(module: str, name: str) -> _Masked:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Masked(f"{module}.{name}")


_shell: Shell | None = None


def warm_up() -> None:
    """Import and make all that every submission needs; no second thread is started."""
    global _shell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.cache_size = 0
    _shell = Shell.instance(config=config)
    with contextlib.suppress(ImportError):
        import matplotlib

        matplotlib.use("module://matplotlib_inline.backend_inline")
        import matplotlib.pyplot
        from matplotlib_inline.backend_inline import configure_inline_support

        configure_inline_support(_shell, "inline")
    torch.ones(1).half() + 1  # torch asks now what the processor can do, while /proc tells
    os.cpu_count = lambda: CORES
    torch.set_num_threads = partial(_few_threads, torch.set_num_threads)
    sys.meta_path.append(_MaskedModules)  # a class does as well
    sys.argv = ["notebook"]
    _shell.run_cell("1 / 0", store_history=False)  # a first traceback is slow


def _few_threads(real: Callable[[int], None], number: int) -> None:
    """Graders use every core already; a thread for each would be more than a limit allows."""
    real(min(number, 1))


def serve(sock: Any) -> None:
    """Answer the examiner until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.insert(0, "")  # as in a notebook: modules that a cell has written
    worker = Worker(Channel(sock))
    worker.channel.send({"ready": True})
    with guard.only("learner"):
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # one that came too late
                worker.answer()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let an interrupt stop the learner's code, and nothing but that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class Worker:
    """What the examiner has sent and what the learner's functions returned, by number."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.returned = channel, 0
        self.forget()

    def forget(self) -> None:
        self.tensors: dict[int, Tensor] = {}  # those that were returned have numbers below 0
        self.sums: dict[int, list] = {}  # of the latter, as the examiner has them
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}  # of objects, by id
        self.graphs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def answer(self) -> None:
        message, blob = self.channel.receive()
        packer, unpacker = Packer(self._pack_other), Unpacker(blob, self._unpack_other)
        try:
            reply = getattr(self, f"_do_{message['do']}")(message, packer, unpacker)
        except WireError as error:
            packer = Packer()
            reply = {"error": {"names": ["TypeError"], "text": f"returned {error}"}}
        except Exception as error:  # of a learner's object that was looked at
            packer, reply = Packer(), {"error": _error(error)}
        self.channel.send(reply | {"to": message["number"]}, packer.blob)

    def _do_run(self, message: dict, *_: Any) -> dict[str, Any]:
        """Run a cell as a notebook does."""
        global _outputs
        assert _shell is not None
        _outputs = Outputs()
        streams = contextlib.redirect_stdout(_Stream("stdout"))
        with streams, contextlib.redirect_stderr(_Stream("stderr")):
            try:
                with _interruptible():
                    _shell.run_cell(message["source"], store_history=False)
            except BaseException as error:  # IPython lets some through
                _shell._showtraceback(type(error), error, [_said(error)])
        outputs, _outputs = _outputs, Outputs()
        return {"outputs": outputs.items, "default": str(torch.get_default_dtype())}

    def _do_names(self, message: dict, packer: Packer, _: Any) -> dict[str, Any]:
        """What stands behind names: a function, a class, a value; nothing for unknown ones."""
        assert _shell is not None
        known = {n: _shell.user_ns[n] for n in message["names"] if n in _shell.user_ns}
        found = {}
        for name, value in known.items():
            with contextlib.suppress(Exception):  # an object may do as it likes
                found[name] = packer.pack(value)
        return {"names": found}

    def _do_forget(self, *_: Any) -> dict[str, Any]:
        self.forget()
        return {}

    def _do_attribute(self, message: dict, packer: Packer, unpacker: Unpacker) -> dict:
        thing, name = self.objects[message["object"]], message["name"]
        return self._call(message, packer, lambda: data.plain(getattr(thing, name)))

    def _do_call(self, message: dict, packer: Packer, unpacker: Unpacker) -> dict[str, Any]:
        """Call a function, a class or an object's method with data."""
        for number in message["dropped"]:
            self.tensors.pop(number, None)
            self.sums.pop(number, None)
        for number, new in message["changed"]:
            self._renew(number, unpacker.unpack(new))
        args, kwargs = unpacker.unpack(message["args"])
        tensors = [x for _, x in data.leaves((args, kwargs)) if isinstance(x, Tensor)]
        leaves = [x for x in tensors if x.requires_grad]
        before = self._state(args, kwargs)
        function = self.objects[message["object"]]

        def run() -> Any:
            value = function(*args, **kwargs)
            return value if _is_own(value, function) else data.plain(value)

        reply = self._call(message, packer, run, leaves)
        now = self._state(args, kwargs)
        return reply | ({"left": packer.pack((args, kwargs))} if now != before else {})

    def _call(
        self, message: dict, packer: Packer, run: Callable[[], Any], leaves: Any = ()
    ) -> dict:
        sink = _Sink()
        seen = guard.Seen(tuple(message.get("forbid", ())), tuple(message.get("allow", ())))
        reply: dict[str, Any] = {}
        try:
            grad = bool(message.get("grad", True))
            with guard.watching(seen, sink), torch.set_grad_enabled(grad), _interruptible():
                value = run()
            if leaves:
                reply["graph"] = self._keep(value, leaves)
            reply["changed"] = list(self._changed(packer))
            numbered = not leaves and message["do"] != "gradient"
            reply["value"] = self._pack_value(packer, value, numbered=numbered)
        except WireError:
            raise
        except data.NotDataError as error:
            raise WireError(str(error)) from None
        except BaseException as error:
            reply = {"error": _error(error)}
        told = {"printed": sink.getvalue()[:LONGEST], "seen": seen.names[:1], "kept": seen.kept}
        return reply | told

    def _keep(self, value: Any, leaves: list[Tensor]) -> int:
        """Remember how the answer came from the arguments, for its gradients."""
        outputs = [x for _, x in data.leaves(value) if isinstance(x, Tensor)]
        self.graphs[len(self.graphs)] = (outputs, list(leaves))
        return len(self.graphs) - 1

    def _do_gradient(self, message: dict, packer: Packer, unpacker: Unpacker) -> dict:
        """The vector-Jacobian product of an earlier call."""
        outputs, leaves = self.graphs[message["graph"]]
        cotangents = unpacker.unpack(message["cotangents"])
        pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True)
                 if c is not None and y.requires_grad]  # fmt: skip

        def products() -> list[Tensor | None]:
            ys, cs = [y for y, _ in pairs], [c for _, c in pairs]
            return list(data.product(ys, leaves, cs))

        return self._call(message, packer, products)

    def _state(self, args: Any, kwargs: Any) -> str:
        """Tells whether arguments have changed, also by way of numpy or `.data`."""
        return json.dumps(Packer(self._mark).pack((args, kwargs)))

    def _mark(self, packer: Packer, x: Any) -> list:
        """A tensor by its checksum alone."""
        plain = type(x) is Tensor or type(x) is torch.nn.Parameter
        return _sum(x) if plain else self._pack_other(packer, x)

    def _renew(self, number: int, new: Tensor) -> None:
        """The examiner changed a tensor that is here too: so does whoever kept it."""
        if number in self.tensors:
            data.assign(self.tensors[number], new)
        if number in self.sums:
            self.sums[number] = _sum(self.tensors[number])

    def _changed(self, packer: Packer) -> Iterator[list]:
        """What was returned earlier, and is not what it was."""
        for number, known in self.sums.items():
            if _sum(self.tensors[number]) != known:
                self.sums[number] = _sum(self.tensors[number])
                yield [number, packer.tensor(self.tensors[number])]

    def _pack_value(self, packer: Packer, value: Any, *, numbered: bool) -> Any:
        """A call's answer; tensors that may be looked at again get a number."""

        def number(packer: Packer, x: Any) -> list:
            packed = self._pack_other(packer, x)
            if packed[0] != "T":
                return packed
            self.returned -= 1
            self.tensors[self.returned], self.sums[self.returned] = x, _sum(x)
            return [*packed, self.returned]

        packer.other = number if numbered else self._pack_other
        packed = packer.pack(value)
        packer.other = self._pack_other
        return packed

    def _pack_other(self, packer: Packer, x: Any) -> list:
        """A tensor with a mark whether it has a gradient; of an object its number and kind."""
        if type(x) is Tensor or type(x) is torch.nn.Parameter:
            return [*packer.tensor(x), bool(x.requires_grad)]
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.objects)
            self.objects.append(x)
        names = [c.__name__ for c in type(x).__mro__]
        return ["o", self.numbers[id(x)], *_kind(x), names[:8], _parameters(x), callable(x)]

    def _unpack_other(self, unpacker: Unpacker, x: list) -> Any:
        match x:
            case ["O", number]:
                return self.objects[number]
            case ["R", number]:
                return self.tensors[number]
            case ["T", kind, shape, start, size, number, strides, leaf]:
                tensor = unpacker.tensor(kind, shape, start, size)
                if strides is not None:
                    tensor = torch.empty_strided(shape, strides, dtype=tensor.dtype).copy_(
                        tensor
                    )
                if number is not None:
                    self.tensors[number] = tensor
                return tensor.requires_grad_() if leaf else tensor
        raise WireError("not a value")


def _sum(x: Tensor) -> list:
    """Tells whether a tensor has changed."""
    if x.layout != torch.strided:
        raise WireError(f"a tensor of layout {x.layout}")
    return ["T", str(x.dtype), list(x.shape), zlib.crc32(raw(x))]


def _is_own(value: Any, maker: Any) -> bool:
    """Whether a class of the learner's, called, made a list or dict with methods of its own."""
    return inspect.isclass(maker) and type(value) is maker and isinstance(value, (list, dict))


def _kind(x: Any) -> list[str]:
    """What an object is, and its name, where it says so."""
    try:
        method, routine = inspect.ismethod(x), inspect.isroutine(x)
        name = str(getattr(x, "__name__", ""))[:60]
    except Exception:  # an object may do as it likes
        return ["object", ""]
    return ["method" if method else "function" if routine else "object", name]


def _parameters(x: Any) -> list[str]:
    """The names of what a function takes, for messages."""
    if not callable(x):
        return []
    try:
        parameters = inspect.signature(x).parameters.values()
        return [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD][:30]
    except Exception:  # built in, or a class that does as it likes
        return []


def _error(error: BaseException) -> dict[str, Any]:
    """What is told of an exception: its classes' names, its text, and where it came from."""
    frame = guard.own_frame(error)
    where = [frame.name[:200], frame.line[:200]] if frame else None
    names = [c.__name__ for c in type(error).__mro__ if issubclass(c, BaseException)]
    return {"names": names[:8], "text": guard.said(error)[:LONGEST], "where": where}
