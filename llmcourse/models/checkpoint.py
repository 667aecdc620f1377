"""Published checkpoints: a folder with config.json and safetensors, read and written.

What every model needs is here: finding the folder, refusing configurations that mean another
computation, comparing names and shapes, and saying everything that is wrong at once.
"""

import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from torch import Tensor, nn

from llmcourse.ops.common import require, require_count

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

MAX_DEPTH = 100  # of lists and objects in one another; published files have about 5

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
FLOATS = ("F64", "F32", "BF16", "F16")  # as the files call them
# Bits of a number, by the name of its kind in a safetensors file.
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
BITS |= dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8)
BITS |= dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
BITS |= dict.fromkeys(("U16", "I16", "F16", "BF16"), 16)
BITS |= dict.fromkeys(("U32", "I32", "F32"), 32)
BITS |= dict.fromkeys(("U64", "I64", "F64", "C64"), 64)

Shape = tuple[int, ...]
Model = TypeVar("Model", bound=nn.Module)


class Stored(NamedTuple):
    """What a file's header says of one tensor."""

    shape: Shape
    dtype: str

    @property
    def bytes(self) -> int:
        """What it takes in the file."""
        return math.prod(self.shape) * BITS[self.dtype] // 8


class CheckpointError(ValueError):
    """A checkpoint that cannot be read as the model asked for; the message says why."""


def find(path_or_repo_id: str | Path) -> Path:
    """The folder of a checkpoint: a local one as it is, otherwise fetched from the Hub.

    Raises CheckpointError when it is neither a folder nor a repository that can be fetched.
    """
    folder = local_folder(path_or_repo_id)
    if folder is not None:
        return folder
    wanted = [CONFIG, "model*.safetensors", INDEX]  # nothing that could be executed
    try:
        return Path(snapshot_download(str(path_or_repo_id), allow_patterns=wanted))
    except Exception as error:  # whatever the network and the Hub's client may raise
        raise not_fetched(path_or_repo_id, error) from error


def local_folder(path_or_repo_id: str | Path) -> Path | None:
    """The folder of this name, or None for what can only be a repository on the Hub.

    Raises CheckpointError for what is neither.
    """
    if not isinstance(path_or_repo_id, (str, Path)) or not str(path_or_repo_id).strip():
        raise CheckpointError(f"{path_or_repo_id!r} is neither a path nor a repository")
    folder = Path(path_or_repo_id).expanduser()
    if os.path.isdir(folder):
        return folder
    if os.path.exists(folder):  # unlike Path's, these answer no to a name that cannot be
        raise CheckpointError(f"{folder} is a file; a checkpoint is the folder that holds it")
    if not REPOSITORY.fullmatch(str(path_or_repo_id)):
        raise CheckpointError(f"{folder}: there is no such folder")
    return None


def not_fetched(repo_id: str | Path, error: Exception) -> CheckpointError:
    """What to raise when the Hub did not give what was asked for."""
    return CheckpointError(
        f"{repo_id} is neither a folder here nor a repository that could be "
        f"fetched ({type(error).__name__}: {error})"
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError when missing or not an object."""
    if not os.path.lexists(path):
        raise CheckpointError(f"{path.parent} has no {path.name}")
    if not path.is_file():  # a pipe would be waited for without end
        raise CheckpointError(f"{path} is not a file")
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error})") from error


def parse_json(text: bytes) -> dict[str, Any]:
    """The object that a JSON text in UTF-8 says.

    Raises ValueError for anything else, for a key that is there twice, numbers that are none
    (NaN), and nesting beyond MAX_DEPTH, so that whoever reads on meets neither.
    """
    try:
        content = json.loads(
            text.decode(), object_pairs_hook=_each_once, parse_constant=_no_number
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"holds {type(content).__name__}, not an object")
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        level = [part for x in level for part in _parts(x)]
    if level:
        raise ValueError("nested too deeply")
    return content


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, of which other programs might take the first or the last of two values."""
    content = dict(pairs)
    if len(content) < len(pairs):
        (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name} is there {count} times")
    return content


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON's")


def _parts(content: Any) -> Iterable[Any]:
    """What a list or an object holds; nothing else holds anything."""
    if isinstance(content, dict):
        return content.values()
    return content if isinstance(content, list) else ()


def check_config(
    config: Mapping[str, Any],
    *,
    read: Collection[str],
    fixed: Mapping[str, Collection[Any]],
    bookkeeping: Collection[str],
) -> None:
    """Refuse a published configuration that this code would not compute as its authors did.

    read: keys that the caller reads; all must be there.
    fixed: keys whose meaning is built in, with the values that mean what the code does.
    bookkeeping: keys that do not change the computation.
    Raises CheckpointError listing every key that is missing, unknown or has another value.
    """
    problems = [f"missing: {key}" for key in read if key not in config]
    for key, value in config.items():
        if key in fixed and value not in fixed[key]:
            allowed = " or ".join(shown(v) for v in fixed[key])
            problems.append(f"not supported: {key} = {shown(value)}, only {allowed}")
        elif key not in fixed and key not in read and key not in bookkeeping:
            problems.append(f"unknown, may change the computation: {key} = {shown(value)}")
    fail_if(problems, CONFIG)


def shown(value: Any) -> str:
    """A value of a JSON file as it stands there, cut when it is long."""
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def fail_if(problems: Collection[str], where: object) -> None:
    """Raise one CheckpointError with all problems, if there are any."""
    if problems:
        raise CheckpointError("\n  ".join([f"{where}:", *problems]))


def on_meta(make: Callable[[], Model], tensors: Collection[str], **counts: int) -> Model:
    """The model that `make` makes, without memory behind it.

    tensors: names in the files.
    counts: the layers and other parts of the model that have a tensor each at least: a
        configuration that asks for more than the files have is refused before they are made.
    Raises CheckpointError for that and for sizes beyond what a tensor can have.
    """
    more = {name: count for name, count in counts.items() if count > len(tensors)}
    fail_if(
        [f"{n} = {c}, but the files have {len(tensors)} tensors" for n, c in more.items()],
        CONFIG,
    )
    try:
        with torch.device("meta"):
            return make()
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # all mean the sizes
        raise CheckpointError(f"{CONFIG}: no model can have these sizes ({error})") from error


def compare(
    needed: Mapping[str, Shape],
    found: Mapping[str, Stored],
    where: object,
    *,
    in_bytes: tuple[str, ...] = (),
) -> None:
    """Check every name, shape and kind of number.

    in_bytes: endings of the names whose numbers are bytes (U8); all others are FLOATS.
    Raises CheckpointError with the complete list of what is missing, unexpected or misshapen,
    or of a kind that cannot be read.
    """
    problems = [f"missing: {n} {list(needed[n])}" for n in needed if n not in found]
    problems += [f"unexpected: {n} {list(found[n].shape)}" for n in found if n not in needed]
    for name, shape in needed.items():
        stored = found.get(name, Stored(shape, ""))
        if stored.shape != shape:
            problems.append(f"misshapen: {name} is {list(stored.shape)}, needs {list(shape)}")
        kinds = ("U8",) if in_bytes and name.endswith(in_bytes) else FLOATS
        if stored.dtype not in ("", *kinds):
            needs = " or ".join(kinds)
            problems.append(f"not supported: {name} is stored as {stored.dtype}, only {needs}")
    fail_if(problems, where)


def fill(
    model: nn.Module,
    read: Callable[[str], Tensor],
    dtype: torch.dtype | None,
    *,
    exact: tuple[str, ...] = (),
) -> None:
    """Give a model on the meta device its weights, one at a time, so never twice in memory.

    read: name of a parameter or buffer -> tensor.
    dtype: what to convert to; None keeps what is stored, which must then be one dtype.
    exact: endings of names that are float32 at least, whatever the others are.
    Raises CheckpointError for another dtype than these DTYPES, or for several.
    """
    if dtype is not None:
        check_dtype(dtype)
    stored: dict[torch.dtype, str] = {}
    parameters = {name for name, _ in model.named_parameters()}
    for name in model.state_dict():
        tensor = read(name)
        kind = dtype or tensor.dtype
        if exact and name.endswith(exact):
            kind = torch.promote_types(kind, torch.float32)
        else:
            stored.setdefault(tensor.dtype, name)
        owner, _, leaf = name.rpartition(".")
        weight = tensor.to(kind).contiguous()
        weight = nn.Parameter(weight) if name in parameters else weight
        setattr(model.get_submodule(owner), leaf, weight)
    if dtype is None and len(stored) > 1:
        examples = ", ".join(f"{name} is {kind}" for kind, name in stored.items())
        raise CheckpointError(f"stored in several dtypes ({examples}): choose one with dtype=")


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse, with a CheckpointError, a dtype that no weights have."""
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype: got {dtype!r}, needs one of {DTYPES}")


def write(
    folder: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """Write config.json and the weights, in shards with an index when they exceed one file.

    folder: made if missing; weights that are there already are replaced, at the end: whatever
        fails before leaves them as they were, so there must be space for both.
    max_shard_bytes: the most bytes of tensors in one file; a larger tensor gets its own.
    Raises ValueError, with nothing written, for tensors without values and a limit below 1, and
    OSError for a folder that cannot be written.
    """
    require_count("max_shard_bytes", max_shard_bytes)
    require(not any(t.is_meta for t in tensors.values()), "model", "no weights", "weights")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as part:
        _write_all(Path(part), config, tensors, max_shard_bytes)
        _replace(folder, Path(part))


def _write_all(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], max_bytes: int
) -> None:
    shards = list(_shards(tensors, max_bytes))
    names = [
        f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)
    ]
    names = names if len(shards) > 1 else [WEIGHTS]
    for name, shard in zip(names, shards, strict=True):
        content = {key: tensors[key].detach().cpu().contiguous() for key in shard}
        save_file(content, folder / name, metadata={"format": "pt"})
    if len(shards) > 1:
        weight_map = {
            key: name for name, shard in zip(names, shards, strict=True) for key in shard
        }
        total = sum(tensor.nbytes for tensor in tensors.values())
        _write_json(
            folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map}
        )
    _write_json(folder / CONFIG, config)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _replace(folder: Path, part: Path) -> None:
    """Put the files of `part` in the place of a folder's own.

    What names the tensors goes first and comes last: a loader that looks in between finds no
    checkpoint, never one of new and old files.
    """
    for old in [folder / WEIGHTS, folder / INDEX, *folder.glob("model*.safetensors")]:
        old.unlink(missing_ok=True)
    for new in sorted(part.iterdir(), key=lambda path: path.name in (WEIGHTS, INDEX)):
        os.replace(new, folder / new.name)


def _shards(tensors: Mapping[str, Tensor], max_bytes: int) -> Iterable[list[str]]:
    """The names in order, cut where the next tensor would make a file too large."""
    shard: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > max_bytes:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += tensor.nbytes
    yield shard
