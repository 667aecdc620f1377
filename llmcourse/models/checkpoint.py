"""Published checkpoints: a folder with config.json and safetensors, read and written.

What every model needs is here: finding the folder, refusing configurations that mean another
computation, comparing names and shapes, and saying everything that is wrong at once.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from llmcourse.ops.common import require, require_count

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

Shape = tuple[int, ...]


class CheckpointError(ValueError):
    """A checkpoint that cannot be read as the model asked for; the message says why."""


def find(path_or_repo_id: str | Path) -> Path:
    """The folder of a checkpoint: a local one as it is, otherwise fetched from the Hub.

    Raises CheckpointError when it is neither a folder nor a repository that can be fetched.
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
    wanted = [CONFIG, "model*.safetensors", INDEX]
    try:
        return Path(snapshot_download(str(path_or_repo_id), allow_patterns=wanted))
    except Exception as error:  # whatever the network and the Hub's client may raise
        raise CheckpointError(
            f"{path_or_repo_id} is neither a folder here nor a repository that could be "
            f"fetched ({type(error).__name__}: {error})"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError when missing or not an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:  # the Unicode and JSON errors too
        raise CheckpointError(f"{path} is not readable JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds {type(content).__name__}, not an object")
    return content


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
            allowed = " or ".join(json.dumps(v) for v in fixed[key])
            problems.append(f"not supported: {key} = {json.dumps(value)}, only {allowed}")
        elif key not in fixed and key not in read and key not in bookkeeping:
            problems.append(f"unknown, may change the computation: {key} = {json.dumps(value)}")
    fail_if(problems, CONFIG)


def fail_if(problems: Collection[str], where: object) -> None:
    """Raise one CheckpointError with all problems, if there are any."""
    if problems:
        raise CheckpointError("\n  ".join([f"{where}:", *problems]))


class TensorFiles:
    """The tensors of a checkpoint's folder, in one file or in shards; each is read when asked.

    folder: holds model.safetensors, or model.safetensors.index.json and the shards it names.
    shapes: name -> shape, from the files' headers.
    Raises CheckpointError for missing or truncated files and an index that does not match.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, Shape] = {}
        self._file: dict[str, Path] = {}
        if (folder / WEIGHTS).exists():
            self._add_file(folder / WEIGHTS)
        elif (folder / INDEX).exists():
            self._add_shards(read_json(folder / INDEX).get("weight_map"))
        else:
            raise CheckpointError(f"{folder} has neither {WEIGHTS} nor {INDEX}")

    def read(self, name: str) -> Tensor:
        """One tensor, as stored."""
        with self._open(self._file[name]) as file:
            return file.get_tensor(name)

    def _add_shards(self, weight_map: Any) -> None:
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{self.folder / INDEX} has no weight_map")
        shards = sorted(set(map(str, weight_map.values())))
        outside = [f"not a file name: {shard}" for shard in shards if Path(shard).name != shard]
        absent = [f"missing file: {s}" for s in shards if not (self.folder / s).is_file()]
        fail_if(outside or absent, self.folder / INDEX)
        for shard in shards:
            self._add_file(self.folder / shard)
        misplaced = [
            f"{name} is not in {shard}"
            for name, shard in weight_map.items()
            if self._file.get(name) != self.folder / shard
        ]
        fail_if(misplaced, self.folder / INDEX)

    def _add_file(self, path: Path) -> None:
        with self._open(path) as file:
            for name in file.keys():  # noqa: SIM118 - safe_open's handle is no dict
                twice = (
                    f"{name} is also in {self._file[name].name}" if name in self._file else ""
                )
                fail_if([twice] if twice else [], path)
                self.shapes[name] = tuple(file.get_slice(name).get_shape())
                self._file[name] = path

    @staticmethod
    def _open(path: Path) -> Any:
        try:
            return safe_open(path, framework="pt")
        except PermissionError as error:
            raise CheckpointError(f"{path} cannot be read ({error})") from error
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is truncated or not a safetensors file ({error})"
            ) from error


def compare(needed: Mapping[str, Shape], found: Mapping[str, Shape], where: object) -> None:
    """Check every name and shape.

    Raises CheckpointError with the complete list of what is missing, unexpected or misshapen.
    """
    problems = [f"missing: {n} {list(needed[n])}" for n in needed if n not in found]
    problems += [f"unexpected: {n} {list(found[n])}" for n in found if n not in needed]
    problems += [
        f"misshapen: {n} is {list(found[n])}, needs {list(shape)}"
        for n, shape in needed.items()
        if n in found and found[n] != shape
    ]
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
    if dtype not in (None, *DTYPES):
        raise CheckpointError(f"dtype: got {dtype!r}, needs None or one of {DTYPES}")
    stored: dict[torch.dtype, str] = {}
    parameters = {name for name, _ in model.named_parameters()}
    for name in model.state_dict():
        tensor = read(name)
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{name} is stored as {tensor.dtype}, not as one of {DTYPES}")
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


def write(
    folder: str | Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """Write config.json and the weights, in shards with an index when they exceed one file.

    folder: made if missing; weights that are there already are replaced.
    max_shard_bytes: the most bytes of tensors in one file; a larger tensor gets its own.
    Raises ValueError, with nothing written, for tensors without values and a limit below 1.
    """
    require_count("max_shard_bytes", max_shard_bytes)
    require(not any(t.is_meta for t in tensors.values()), "model", "no weights", "weights")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("model*.safetensors"), *folder.glob(INDEX)]:
        old.unlink()
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    shards = list(_shards(tensors, max_shard_bytes))
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
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


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
