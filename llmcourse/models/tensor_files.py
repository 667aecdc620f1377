"""The tensors of a checkpoint: what its files say of them, and each one when it is asked for.

A safetensors file is 8 bytes with the length of its header, the header in JSON, and numbers:

    {"wte.weight": {"dtype": "F32", "shape": [50257, 768], "data_offsets": [0, 154389504]}, ...

Nothing in it can be executed, but it may lie: a header is checked before a number is read.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import get_safetensors_metadata, hf_hub_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llmcourse.models import checkpoint
from llmcourse.models.checkpoint import (
    BITS,
    CONFIG,
    INDEX,
    WEIGHTS,
    CheckpointError,
    Stored,
    fail_if,
)

MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
MAX_AXES = 64  # of a tensor in PyTorch
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors")
METADATA = "__metadata__"

Header = Mapping[str, Any]


class TensorFiles:
    """The tensors of a checkpoint, in one file or in shards.

    where: the folder, or the repository.
    headers: file -> its header, checked by `check_header`.
    tensors: name -> shape and kind of number.
    Raises CheckpointError for a name that is in two files.
    """

    def __init__(self, where: str | Path, headers: Mapping[str, Header]) -> None:
        self.where = where
        self.count = len(headers)
        self.tensors: dict[str, Stored] = {}
        self.file_of: dict[str, str] = {}
        for file, header in headers.items():
            twice = [f"{n} is also in {self.file_of[n]}" for n in header if n in self.tensors]
            fail_if(twice, _place(where, file))
            for name, entry in header.items():
                self.tensors[name] = Stored(tuple(entry["shape"]), entry["dtype"])
                self.file_of[name] = file

    @property
    def bytes(self) -> dict[str, int]:
        """Kind of number -> bytes of all tensors of this kind."""
        sizes: Counter[str] = Counter()
        for stored in self.tensors.values():
            sizes[stored.dtype] += stored.bytes
        return dict(sizes)

    def read(self, name: str) -> Tensor:
        """One tensor, as stored, a copy of its own; from a folder."""
        path = Path(self.where) / self.file_of[name]
        try:
            with safe_open(path, framework="pt") as file:
                # What it gives is the file itself, mapped: it would change with the file.
                return file.get_tensor(name).clone()
        except (SafetensorError, OSError) as error:  # it has changed since, or is a bad disk
            raise CheckpointError(f"{path} cannot be read ({error})") from error


def in_folder(folder: Path) -> TensorFiles:
    """The tensors in model.safetensors, or in the shards that an index names.

    A file may be a link, as in the Hub's cache, but the index names files of the folder only.
    Other files are left alone; those that Python would execute (`.bin`) are never opened.
    Raises CheckpointError for files that are missing, truncated or hostile, and for an index
    that does not match them.
    """
    if os.path.lexists(folder / WEIGHTS):
        return TensorFiles(folder, {WEIGHTS: read_header(folder / WEIGHTS)})
    if not os.path.lexists(folder / INDEX):
        raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
    weight_map: Any = checkpoint.read_json(folder / INDEX).get("weight_map")
    shards = _shards(weight_map, folder)
    absent = [f"missing file: {s}" for s in shards if not os.path.isfile(folder / s)]
    fail_if(absent, folder / INDEX)
    files = TensorFiles(folder, {shard: read_header(folder / shard) for shard in shards})
    _check_places(files, weight_map)
    return files


def headers_of(path_or_repo_id: str | Path) -> tuple[dict[str, Any], TensorFiles]:
    """config.json, and what the headers say of the tensors: of a folder, or on the Hub.

    From the Hub only config.json, the index and the headers are fetched.
    Raises CheckpointError as `checkpoint.find` and `in_folder`.
    """
    folder = checkpoint.local_folder(path_or_repo_id)
    if folder is not None:
        return checkpoint.read_json(folder / CONFIG), in_folder(folder)
    repo_id = str(path_or_repo_id)
    try:
        config = Path(hf_hub_download(repo_id, CONFIG))
        metadata = get_safetensors_metadata(repo_id)
        headers = {
            file: {name: vars(info) for name, info in content.tensors.items()}
            for file, content in metadata.files_metadata.items()
        }
    except Exception as error:  # whatever the network and the Hub's client may raise
        raise checkpoint.not_fetched(repo_id, error) from error
    checked = {file: check_header(h, None, f"{repo_id}/{file}") for file, h in headers.items()}
    files = TensorFiles(repo_id, checked)
    if metadata.sharded:
        _shards(metadata.weight_map, repo_id)
        _check_places(files, metadata.weight_map)
    return checkpoint.read_json(config), files


def _place(where: str | Path, file: str) -> str:
    return f"{where}/{file}"


def _shards(weight_map: Any, where: str | Path) -> list[str]:
    """The files that an index names, once it is known that they are safetensors beside it."""
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{_place(where, INDEX)} has no weight_map")
    named = [*weight_map.values()]
    bad = [name for name in named if not isinstance(name, str) or not SHARD.fullmatch(name)]
    problems = [f"not a file name: {name}" for name in dict.fromkeys(map(str, bad))]
    fail_if(problems, f"{_place(where, INDEX)}, which may name .safetensors beside it")
    return sorted(set(named))


def _check_places(files: TensorFiles, weight_map: Mapping[str, str]) -> None:
    placed = {n: s for n, s in weight_map.items() if files.file_of.get(n) != s}
    misplaced = [f"{name} is not in {shard}" for name, shard in placed.items()]
    fail_if(misplaced, _place(files.where, INDEX))


def read_header(path: Path) -> Header:
    """The header of one file: name -> {"dtype", "shape", "data_offsets"}; nothing else is read.

    Raises CheckpointError for what is no safetensors file from its first to its last byte.
    """
    if not os.path.isfile(path):
        raise CheckpointError(f"{path} is not a file")
    try:
        with open(path, "rb", buffering=0) as file:  # unbuffered: not a byte too many
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER):
                raise ValueError(f"it has {size} bytes, and would have {length} of header")
            header = checkpoint.parse_json(file.read(length))
    except PermissionError as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} {BROKEN} ({error})") from error
    return check_header(header, size - 8 - length, path)


BROKEN = "is truncated or not a safetensors file"


def check_header(header: Header, data_bytes: int | None, where: object) -> Header:
    """A header without its metadata, once it is known to describe `data_bytes` of numbers.

    data_bytes: what follows the header, or None where it cannot be known.
    Raises CheckpointError for unknown kinds of numbers, shapes and offsets that do not fit one
    another, overlaps, holes, and numbers that are missing at the end or follow it.
    """
    tensors = {name: entry for name, entry in header.items() if name != METADATA}
    problems = [f"{n}: {p}" for n, entry in tensors.items() for p in _entry_problems(entry)]
    fail_if(problems or _gaps(tensors, data_bytes), f"{where} {BROKEN}")
    return tensors


def _entry_problems(entry: Any) -> Iterator[str]:
    """What is wrong with one tensor's line of a header, if anything."""
    keys = ("dtype", "shape", "data_offsets")
    if not isinstance(entry, Mapping) or any(key not in entry for key in keys):
        yield "needs an object with dtype, shape and data_offsets"
        return
    dtype, shape, offsets = (entry[key] for key in keys)
    if not isinstance(dtype, str) or dtype not in BITS:
        yield f"its dtype is unknown: {str(dtype)[:100]}"
    elif not _are_counts(shape, least=1) or len(shape) > MAX_AXES:
        yield f"its shape cannot be: {str(shape)[:100]}"
    elif not _are_counts(offsets, least=0) or len(offsets) != 2:
        yield f"its offsets are no two places in the file: {str(offsets)[:100]}"
    elif math.prod(shape) * BITS[dtype] != 8 * (offsets[1] - offsets[0]):
        begin, end = offsets
        yield f"{list(shape)} in {dtype} does not take the bytes {begin} to {end}"


def _are_counts(numbers: Any, least: int) -> bool:
    if not isinstance(numbers, (list, tuple)):
        return False
    return all(type(n) is int and least <= n < 2**63 for n in numbers)


def _gaps(tensors: Mapping[str, Any], data_bytes: int | None) -> list[str]:
    """Where one tensor does not begin at the end of another, and the last not end the file."""
    end, problems = 0, []
    for (begin, next_end), name in sorted(
        (tuple(entry["data_offsets"]), name) for name, entry in tensors.items()
    ):
        if begin != end:
            kind = "overlaps another" if begin < end else "begins after a hole"
            problems.append(f"{name}: {kind}, at byte {begin} instead of {end}")
        end = next_end
    if data_bytes is not None and end != data_bytes:
        problems.append(f"{end} bytes of numbers are described, {data_bytes} are there")
    return problems
