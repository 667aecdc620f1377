"""What serving a model asks of a machine."""

from dataclasses import dataclass
from typing import Any

from llmcourse.accounting.flops import decode_flops, prefill_flops
from llmcourse.accounting.memory import Precision, cache_bytes, weight_bytes


@dataclass(frozen=True)
class Serving:
    """What some sequences of one length need at the same time.

    weights, cache: bytes.
    prefill_flops: to read all their tokens, only what each may see.
    decode_flops: to write the last one of each, the others in the cache.
    """

    weights: int
    cache: int
    prefill_flops: int
    decode_flops: int

    @property
    def memory(self) -> int:
        """Bytes held in all, but for what the computation itself needs on the way."""
        return self.weights + self.cache


def serving(
    config: Any,
    context: int,
    *,
    batch: int = 1,
    weights: Precision = "bfloat16",
    cache: Precision = "bfloat16",
) -> Serving:
    """What `batch` sequences of `context` tokens each need.

    weights, cache: precisions, as in `weight_parts` and `cache_parts`.
    Raises ValueError for a context below 1 or beyond the model's own, and as those two.
    """
    return Serving(
        weights=weight_bytes(config, weights),
        cache=cache_bytes(config, context, precision=cache, batch=batch),
        prefill_flops=batch * prefill_flops(config, context),
        decode_flops=batch * decode_flops(config, context),
    )
