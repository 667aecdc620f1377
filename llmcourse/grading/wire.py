"""What crosses between a learner's process and ours: JSON and raw bytes, never pickle.

A message is a JSON object and a block of bytes, to which tensors point by their offset. Both
ends use this file, but neither trusts the other: whatever arrives is looked at before it is
used, and anything that is not as it must be ends the conversation (`WireError`).
"""

import json
import math
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

HEAD = struct.Struct(">QQ")  # bytes of JSON, bytes of tensors
LONGEST = 32 * 2**20  # of JSON
LARGEST = 256 * 2**20  # of tensors
LONGEST_INT = 8000  # bits
DEEPEST = 24  # lists in lists
MOST = 400_000  # values in one message
DTYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8,
        torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128,
    )
}  # fmt: skip
ARRAYS = {"float64", "float32", "float16", "bool", "uint8", "int8", "int16", "int32", "int64",
          "complex64", "complex128"}  # fmt: skip
# What an end does with values beyond data: write one, and read its form.
Write = Callable[["Packer", Any], list]
Read = Callable[["Unpacker", list], Any]


class WireError(Exception):
    """The other end said something that it never says; the conversation is over."""


class Ended(WireError):  # noqa: N818, what has happened
    """The other end is gone, or silent for too long."""


class Channel:
    """One end of a socket; messages go both ways, one at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: dict[str, Any], blob: bytes | bytearray = b"") -> None:
        """Send a message and its block of bytes. Raises Ended when nobody is there."""
        text = json.dumps(message).encode()
        if len(text) > LONGEST or len(blob) > LARGEST:
            raise WireError("a message far too large")
        try:
            self.sock.settimeout(None)
            self.sock.sendall(b"".join((HEAD.pack(len(text), len(blob)), text, blob)))
        except OSError as error:
            raise Ended(str(error)) from None

    def waits(self, seconds: float | None) -> bool:
        """Whether something comes within `seconds`, be it the end."""
        return bool(select.select([self.sock], [], [], seconds)[0])

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], bytes]:
        """The next message and its bytes, whole within `seconds`. Raises Ended or WireError."""
        until = None if seconds is None else time.monotonic() + seconds
        text_length, blob_length = HEAD.unpack(self._exactly(HEAD.size, until))
        if text_length > LONGEST or blob_length > LARGEST:
            raise WireError("a message far too large")
        text, blob = self._exactly(text_length, until), self._exactly(blob_length, until)
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            raise WireError("not JSON") from None
        if not isinstance(message, dict):
            raise WireError("not a message")
        return message, bytes(blob)

    def _exactly(self, size: int, until: float | None) -> bytearray:
        got = bytearray()
        while len(got) < size:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise Ended("no answer in time")
            try:
                self.sock.settimeout(left)
                part = self.sock.recv(min(size - len(got), 2**20))
            except TimeoutError:
                raise Ended("no answer in time") from None
            except OSError as error:
                raise Ended(str(error)) from None
            if not part:
                raise Ended("the process is gone")
            got += part
        return got

    def close(self) -> None:
        self.sock.close()


class Packer:
    """Writes values for one message; tensors gather in `blob`."""

    def __init__(self, other: Write | None = None) -> None:
        self.blob = bytearray()
        self.other = other
        self.left = MOST

    def pack(self, x: Any, depth: int = 0) -> Any:
        """The JSON form of a value. Raises WireError for too much, and for what is no data."""
        self.left -= 1
        if depth > DEEPEST or self.left < 0:
            raise WireError("nested too deep" if depth > DEEPEST else "without an end")
        if x is None or type(x) in (bool, float, str):
            return x
        if type(x) is int:
            if x.bit_length() > LONGEST_INT:
                raise WireError(f"an int of {x.bit_length()} bits, far too large")
            return x if abs(x) < 2**53 else ["i", hex(x)]
        if type(x) in (list, tuple):
            return ["l" if type(x) is list else "t", [self.pack(y, depth + 1) for y in x]]
        if type(x) is dict:
            return ["d", [[self.pack(k, depth + 1), self.pack(y, depth + 1)]
                          for k, y in x.items()]]  # fmt: skip
        if type(x) is bytes:
            return ["b", *self._store(x)]
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype.name in ARRAYS:
            kind = "n" if isinstance(x, np.ndarray) else "s"
            return [kind, x.dtype.name, list(x.shape), *self._store(x.tobytes())]
        if self.other is not None:
            return self.other(self, x)
        if type(x) not in (Tensor, torch.nn.Parameter):
            raise WireError(f"a {type(x).__name__} is no data")
        return self.tensor(x)

    def tensor(self, x: Tensor) -> list:
        """["T", dtype, shape, offset, size]; the values gather in `blob`."""
        kind = str(x.dtype).removeprefix("torch.")
        fine = x.layout == torch.strided and x.device.type == "cpu" and not x.is_nested
        if not fine or kind not in DTYPES:
            raise WireError(f"a tensor of {kind}, {x.layout}, on {x.device.type}")
        if x.numel() * x.element_size() > LARGEST:
            raise WireError(f"a tensor of shape {list(x.shape)}, far too large")
        return ["T", kind, list(x.shape), *self._store(raw(x))]

    def _store(self, raw: bytes | memoryview) -> list[int]:
        start = len(self.blob)
        self.blob += raw
        if len(self.blob) > LARGEST:
            raise WireError("too many bytes in one message")
        return [start, len(raw)]


def raw(x: Tensor) -> bytes | memoryview:
    """The bytes of a strided tensor's numbers, in order."""
    if not x.numel():
        return b""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    flat = x.as_strided((x.numel(),), (1,))  # a single number may lie with any stride
    return flat.view(torch.uint8).numpy().data


class Unpacker:
    """Reads the values of one message. Raises WireError for anything malformed."""

    def __init__(self, blob: bytes, other: Read | None = None) -> None:
        self.blob = blob
        self.other = other
        self.left, self.room = MOST, LARGEST

    def unpack(self, x: Any, depth: int = 0) -> Any:
        """The value whose JSON form this is."""
        self.left -= 1
        if depth > DEEPEST or self.left < 0:
            raise WireError("nested too deep" if depth > DEEPEST else "without an end")
        if x is None or type(x) in (bool, int, float, str):
            return x
        if type(x) is not list or not x or type(x[0]) is not str:
            raise WireError("not a value")
        match x:
            case ["i", str(digits)] if len(digits) < LONGEST_INT // 4 + 8:
                return _integer(digits)
            case ["l", list(items)]:
                return [self.unpack(y, depth + 1) for y in items]
            case ["t", list(items)]:
                return tuple(self.unpack(y, depth + 1) for y in items)
            case ["d", list(items)]:
                return self._dict(items, depth)
            case ["b", start, size]:
                return self._load(start, size)
            case ["T", str(kind), list(shape), start, size]:
                return self.tensor(kind, shape, start, size)
            case ["n" | "s" as form, str(kind), list(shape), start, size]:
                return self._array(form, kind, shape, start, size)
        if self.other is None:
            raise WireError("not a value")
        return self.other(self, x)

    def tensor(self, kind: str, shape: list, start: Any, size: Any) -> Tensor:
        """A tensor with memory of its own."""
        if kind not in DTYPES:
            raise WireError("no such dtype")
        self._check_size(shape, size, DTYPES[kind].itemsize)
        if not size:
            return torch.empty(shape, dtype=DTYPES[kind])
        raw = bytearray(self._load(start, size))
        if kind == "bool":  # bytes other than 0 and 1 would be neither true nor false
            return torch.frombuffer(raw, dtype=torch.uint8).ne(0).reshape(shape)
        return torch.frombuffer(raw, dtype=DTYPES[kind]).reshape(shape)

    def _array(self, form: str, kind: str, shape: list, start: Any, size: Any) -> Any:
        if kind not in ARRAYS:
            raise WireError("no such dtype")
        self._check_size(shape, size, np.dtype(kind).itemsize)
        raw = np.frombuffer(self._load(start, size), dtype="uint8" if kind == "bool" else kind)
        array = (raw != 0 if kind == "bool" else raw).reshape(shape).copy()
        return array[()] if form == "s" and not shape else array

    def _dict(self, items: list, depth: int) -> dict:
        pairs = [y for y in items if type(y) is list and len(y) == 2]
        if len(pairs) != len(items):
            raise WireError("not a dict")
        try:
            return {self.unpack(k, depth + 1): self.unpack(y, depth + 1) for k, y in pairs}
        except TypeError:
            raise WireError("a key that is none") from None

    def _check_size(self, shape: list, size: Any, itemsize: int) -> None:
        whole = all(type(n) is int and 0 <= n < 2**40 for n in shape) and len(shape) <= 32
        if not whole or type(size) is not int or math.prod(shape) * itemsize != size:
            raise WireError("a size that does not fit")
        try:
            torch.empty(shape, device="meta")
        except RuntimeError:  # sizes beyond any memory, beside a 0
            raise WireError("a shape that none can have") from None

    def _load(self, start: Any, size: Any) -> bytes:
        whole = type(start) is int and type(size) is int and start >= 0 and size >= 0
        if not whole or start + size > len(self.blob):
            raise WireError("bytes that are not there")
        self.room -= size  # the same bytes, read again and again, are not free
        if self.room < 0:
            raise WireError("too many bytes in one message")
        return self.blob[start : start + size]


def _integer(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError:
        raise WireError("not a number") from None
