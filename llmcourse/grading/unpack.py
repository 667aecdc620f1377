"""What lies inside bytes: archives, compressed files, the notes in a picture, base64."""

import base64
import binascii
import contextlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from itertools import chain

DEEPEST = 3  # layers: a picture, in a notebook, in a zip file
HUGE = 20_000_000  # bytes of one layer; a text that leaks is shorter
SMALL, TIMES = 100_000, 10  # bytes that base64 may unpack to, and how many for each of its own
# Every `+` and `*` is possessive: a learner's text that fails to match fails at once.
BASE64 = re.compile(r"[A-Za-z0-9+/_-]{32,}+(?:[^\S\n]*+\n\s*+[A-Za-z0-9+/_-]++)*+={0,2}+")
NOTE = re.compile(rb"(?s)(tEXt|zTXt|iTXt)")


def text(raw: bytes) -> str:
    """Return bytes as text, in UTF-8 or UTF-16, whatever else they hold."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", errors="replace")
    return raw.replace(b"\0", b"").decode("utf-8", errors="replace")


def layers(raw: bytes) -> Iterator[bytes]:
    """Yield the bytes, and those of everything packed into them, layer by layer.

    What is unpacked ends at a multiple of what was packed: an archive may be made to burst.
    """
    left = HUGE + TIMES * len(raw)
    waiting = [(raw, 0)]
    while waiting:
        layer, depth = waiting.pop()
        yield layer
        within = chain(_members(layer), _deflated(layer, HUGE), encoded(text(layer)))
        for inner in within if depth < DEEPEST else ():
            left -= len(inner)
            if left < 0:
                return
            waiting.append((inner, depth + 1))


def encoded(text: str) -> Iterator[bytes]:
    """Yield what is written in base64 in a text, wherever it stands."""
    for found in BASE64.finditer(text):
        letters = re.sub(r"\s", "", found[0]).rstrip("=").translate({45: "+", 95: "/"})
        letters = letters[:-1] if len(letters) % 4 == 1 else letters
        with contextlib.suppress(binascii.Error, ValueError):
            raw = base64.b64decode(letters + "=" * (-len(letters) % 4))
            yield raw
            yield from _deflated(raw, SMALL + TIMES * len(raw))


def _members(raw: bytes) -> Iterator[bytes]:
    """The files of a zip archive (also .npz), up to a size."""
    if raw[:2] != b"PK":
        return
    broken = contextlib.suppress(zipfile.BadZipFile, OSError, RuntimeError, zlib.error)
    with broken, zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for info in archive.infolist():
            if info.file_size <= HUGE:
                yield archive.read(info)


def _deflated(raw: bytes, most: int) -> Iterator[bytes]:
    """What gzip or zlib made small, and the notes in a PNG picture: `most` bytes in all."""
    starts = [0] if raw[:2] in (b"\x1f\x8b", b"\x78\x9c", b"\x78\x01", b"\x78\xda") else []
    if raw[:4] == b"\x89PNG":
        # A chunk: its kind, a keyword, a zero, some flags, then the stream.
        kinds = [found.end() for found in NOTE.finditer(raw)]
        starts += [i for k in kinds if (i := raw.find(b"\x78", k, k + 160)) >= 0]
    for start in dict.fromkeys(starts):
        with contextlib.suppress(zlib.error):
            inner = zlib.decompressobj(wbits=47).decompress(
                memoryview(raw)[start:], max(most, 1)
            )
            most -= len(inner)
            yield inner
