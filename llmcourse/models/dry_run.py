"""What a checkpoint holds and what it would take to load it, from the headers of its files."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from llmcourse.models.checkpoint import Stored, check_dtype
from llmcourse.models.tensor_files import TensorFiles

LINE = "{:22}{:>20}{:>21}  {}"  # the columns of a printed report


@dataclass(frozen=True)
class Report:
    """The sizes of a checkpoint, whose text is a table: `print` it.

    where: the folder or repository.
    config: of the model.
    files: how many hold the tensors.
    numbers: part of the model -> its parameters and selection biases.
    stored: part of the model -> kind of number (as "BF16") -> bytes in the files.
    not_read: kind of number -> bytes of tensors that the model has no use for.
    exact: how many of the numbers are kept in float32 at least, whatever dtype is asked for.
    """

    where: str
    config: Any
    files: int
    numbers: Mapping[str, int]
    stored: Mapping[str, Mapping[str, int]]
    not_read: Mapping[str, int]
    exact: int

    @property
    def parameters(self) -> int:
        """All parameters, and the selection biases of routers."""
        return sum(self.numbers.values())

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes in the files for each part of the model."""
        return {part: sum(kinds.values()) for part, kinds in self.stored.items()}

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes in the files for each kind of number, of what the model reads."""
        sizes: Counter[str] = Counter()
        for kinds in self.stored.values():
            sizes.update(kinds)
        return dict(sizes)

    @property
    def stored_bytes(self) -> int:
        """Bytes in the files of what the model reads."""
        return sum(self.bytes_by_part.values())

    def loaded_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the weights of `from_pretrained(..., dtype=dtype)`.

        Raises CheckpointError for a dtype that no weights have.
        """
        check_dtype(dtype)
        at_least = max(dtype.itemsize, torch.float32.itemsize)
        return dtype.itemsize * (self.parameters - self.exact) + at_least * self.exact

    def __str__(self) -> str:
        name = type(self.config).__name__.removesuffix("Config")
        files = f"{self.files} file" + "s" * (self.files > 1)
        lines = [f"{name} in {self.where}, {files}"]
        lines.append(LINE.format("part", "numbers", "bytes stored", "as"))
        for part, size in self.bytes_by_part.items():
            kinds = ", ".join(self.stored[part])
            lines.append(LINE.format(part, f"{self.numbers[part]:,}", f"{size:,}", kinds))
        kinds = ", ".join(self.bytes_by_dtype)
        sizes = f"{self.parameters:,}", f"{self.stored_bytes:,}"
        lines.append(LINE.format("in all", *sizes, kinds))
        for kind, size in self.not_read.items():
            lines.append(LINE.format("not read", "", f"{size:,}", kind))
        for dtype in (torch.bfloat16, torch.float32):
            kind, size = str(dtype).removeprefix("torch."), self.loaded_bytes(dtype)
            lines.append(LINE.format("to load", "", f"{size:,}", f"{kind}: {binary(size)}"))
        return "\n".join(line.rstrip() for line in lines)


def binary(size: int) -> str:
    """Bytes in the largest unit of which there is one at least: 3 * 2**30 -> "3.00 GiB"."""
    units = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
    for unit, bytes_each in units.items():
        if size >= bytes_each:
            return f"{size / bytes_each:.2f} {unit}"
    return f"{size} bytes"


def report(
    model: nn.Module,
    published: Mapping[str, Iterable[str]],
    found: Mapping[str, Stored],
    files: TensorFiles,
    *,
    part_of: Callable[[str], str],
    exact: tuple[str, ...] = (),
) -> Report:
    """The report of a checkpoint whose names and shapes fit the model.

    model: without memory behind it.
    published: name of a parameter or buffer of the model -> its names in `found`.
    files: all tensors.
    part_of: name of a parameter or buffer -> part of the model.
    exact: endings of names, as in `checkpoint.fill`.
    """
    numbers: Counter[str] = Counter()
    stored: dict[str, Counter[str]] = {}
    not_read, kept = Counter(files.bytes), 0
    for name, tensor in model.state_dict().items():
        part, count = part_of(name), math.prod(tensor.shape)
        numbers[part] += count
        kept += count if exact and name.endswith(exact) else 0
        sizes = stored.setdefault(part, Counter())
        for public in published[name]:
            sizes[found[public].dtype] += found[public].bytes
            not_read[found[public].dtype] -= found[public].bytes
    config = getattr(model, "config", None)
    left = dict(+not_read)  # only what is more than nothing
    return Report(str(files.where), config, files.count, numbers, stored, left, kept)
