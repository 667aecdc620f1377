"""Measuring this machine: seconds, bytes, arithmetic and memory traffic.

Measurements differ from run to run: show them, and never test them against a limit.
"""

import math
import os
import platform
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from llmcourse.ops.common import require, require_count

Task = Callable[[], Any]
# PyTorch's counter does not know c += a @ b, of a [n, m] and b [m, l] in each of B.
IN_PLACE = {
    torch.ops.aten.baddbmm_: lambda c, a, b, **options: 2 * math.prod(a) * b[-1],
}


def seconds(function: Task, *, repeats: int = 5, warmup: int = 1) -> float:
    """The median time of a call, in seconds, over `repeats` calls after `warmup` others."""
    return statistics.median(interleaved({"it": function}, repeats, warmup=warmup)["it"])


def interleaved(
    functions: Mapping[str, Task], repeats: int = 5, *, warmup: int = 1
) -> dict[str, list[float]]:
    """Times of several functions called in turn: a b c, a b c, ... so that a slow moment of the
    machine falls on all of them.

    Returns name -> `repeats` times in seconds, in the order measured.
    """
    require_count("repeats", repeats)
    require_count("warmup", warmup, least=0)
    for _ in range(warmup):
        for function in functions.values():
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = _now()
            function()
            times[name].append(_now() - start)
    return times


def peak_memory(function: Task) -> int:
    """The most bytes of tensors that a call holds at one time, above those held before it.

    On a GPU what PyTorch's allocator reports. On the CPU the tensors that operations return,
    exactly; scratch space inside one operation is not seen.
    """
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with _Tensors() as held:
        function()
    return held.peak


def flops(function: Task) -> int:
    """FLOPs of a call: PyTorch's count of its matrix products, two for each multiply-add."""
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        function()
    return int(counter.get_total_flops())


def matmul_rate(
    size: int = 1024,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    repeats: int = 5,
) -> float:
    """FLOP/s of a product of two size x size matrices, two FLOPs a multiply-add."""
    require_count("size", size)
    a = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / seconds(lambda: a @ a, repeats=repeats)


def bandwidth(num_bytes: int = 2**28, *, device: str = "cpu", repeats: int = 5) -> float:
    """Bytes/s to and from memory while copying `num_bytes`: each is read once, written once.

    num_bytes: far above the processor's caches, 256 MiB by default.
    """
    require_count("num_bytes", num_bytes)
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds(lambda: target.copy_(source), repeats=repeats)


def decode_seconds(
    model: Any, context_lengths: Sequence[int], *, use_cache: bool, repeats: int = 5
) -> list[float]:
    """Median seconds to get the logits after each of `context_lengths` tokens, batch 1.

    use_cache: time single tokens, the last `repeats` of the text, each with all before it in
    the cache; otherwise time reading the whole text.
    model: called as `model(ids, cache)`; has `new_cache(batch)` and `config.vocab_size`.
    """
    require(len(context_lengths) > 0, "context_lengths", "none", "at least one")
    for length in context_lengths:
        require_count("context_lengths", length)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, max(context_lengths)), generator=generator)
    times = []
    with torch.no_grad():
        for n in context_lengths:
            text = ids[:, :n]
            if use_cache:
                times.append(statistics.median(_steps(model, text, repeats)))
            else:
                times.append(seconds(partial(model, text), repeats=repeats))
    return times


def machine() -> dict[str, Any]:
    """What the numbers were measured on: processor, cores, versions, date."""
    facts: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": date.today().isoformat(),
    }
    facts["cores"] = facts["cores"] or os.cpu_count()
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


class _Tensors(TorchDispatchMode):
    """Follows every storage that an operation returns until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {x.untyped_storage()._cdata for x in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for x in _tensors(out):
            storage = x.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in given and key not in self._seen:
                self._seen.add(key)
                self.now += size
                weakref.finalize(storage, self._free, key, size)
        self.peak = max(self.peak, self.now)
        return out

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _steps(model: Any, ids: Tensor, repeats: int) -> list[float]:
    """Times of the last steps of decoding `ids`, at least `repeats`, after one for warmth."""
    require_count("repeats", repeats)
    model(ids[:, :1], model.new_cache(1))
    first = max(0, ids.shape[1] - repeats)
    times: list[float] = []
    while len(times) < repeats:
        cache = model.new_cache(1)
        if first:
            model(ids[:, :first], cache)
        for t in range(first, ids.shape[1]):
            start = _now()
            model(ids[:, t : t + 1], cache)
            times.append(_now() - start)
    return times


def _now() -> float:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()  # a GPU works on after the call has returned
    return time.perf_counter()


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return (names or [platform.processor() or platform.machine()])[0]
