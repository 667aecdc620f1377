"""Bytes: of a model's weights, and of what it remembers of a text."""

from collections.abc import Collection, Mapping
from functools import singledispatch
from typing import Any

from llmcourse.accounting.common import Parts, require_context, unknown
from llmcourse.accounting.numbers import parameter_parts
from llmcourse.models import GPT2Config, KimiK3Config, KimiLinearConfig, OneMemoryConfig
from llmcourse.models.mxfp4 import GROUP
from llmcourse.ops.common import require, require_count

# One precision for all parts, or one for each of them by name.
Precision = str | Mapping[str, str]
# Bytes of 32 numbers: in MXFP4, 32 of four bits share a scale of one byte.
BYTES_OF_GROUP = {"float64": 256, "float32": 128, "bfloat16": 64, "float16": 64, "mxfp4": 17}
# What recurrent layers carry on: never below float32, whatever the weights are.
STATES = ("state", "neighbours")


@singledispatch
def weight_numbers(config: Any) -> Parts:
    """Numbers that a checkpoint holds, by part: parameters, and selection biases of routers.

    Without what fills up a tensor: Kimi K3's files pad each A_log to a multiple of 128.
    """
    return parameter_parts(config)


@weight_numbers.register
def _(config: KimiLinearConfig) -> Parts:
    biases = (config.num_layers - config.num_dense) * config.num_experts
    return parameter_parts(config) | {"selection biases": biases}


@singledispatch
def published_precision(config: Any) -> dict[str, str]:
    """The precision in which the weights of a release are kept: part -> name.

    GPT-2: float32. Kimi Linear and Kimi K3: float32 for what `from_pretrained` keeps so,
    routers and rates of decay; MXFP4 for K3's routed experts; bfloat16 for the rest.
    Change a part with `published_precision(config) | {part: name}`.
    Raises TypeError for a kind of model that was not published.
    """
    raise TypeError(
        f"config is a {type(config).__name__}; no release of it is known: choose a precision"
    )


@published_precision.register
def _(config: GPT2Config) -> dict[str, str]:
    return dict.fromkeys(weight_numbers(config), "float32")


@published_precision.register
def _(config: KimiLinearConfig | KimiK3Config) -> dict[str, str]:
    precision = dict.fromkeys(weight_numbers(config), "bfloat16")
    precision |= dict.fromkeys(["router", "selection biases", "KDA rates"], "float32")
    if isinstance(config, KimiK3Config):
        precision["routed experts"] = "mxfp4"
    return precision


def weight_parts(config: Any, precision: Precision = "bfloat16") -> Parts:
    """Bytes of the weights by part.

    precision: "float64", "float32", "bfloat16", "float16" or "mxfp4" for all parts;
        "published" for `published_precision`; or a mapping with a name for each part. In MXFP4
        the rows of a matrix are taken to be whole groups of 32.
    Raises ValueError for other names, parts left out, and parts that are no groups of 32.
    """
    if precision == "published":
        precision = published_precision(config)
    numbers = weight_numbers(config)
    names = _by_part(precision, numbers)
    return {part: _bytes(part, n, names[part]) for part, n in numbers.items()}


def weight_bytes(config: Any, precision: Precision = "bfloat16") -> int:
    """Bytes of all weights; everything as in `weight_parts`."""
    return sum(weight_parts(config, precision).values())


@singledispatch
def cache_numbers(config: Any, context: int) -> Parts:
    """Numbers that one sequence leaves in memory after `context` tokens, by part.

    Raises TypeError for a kind of configuration that is not known.
    """
    raise unknown(config)


def cache_parts(
    config: Any,
    context: int,
    *,
    precision: Precision = "bfloat16",
    bytes_per_number: int | None = None,
    batch: int = 1,
) -> Parts:
    """Bytes remembered by part, for `batch` sequences of `context` tokens each.

    precision: of the model, "bfloat16" for example: what grows with the text has it, and
        recurrent states float32 at least. Or a mapping with a name for each part.
    bytes_per_number: one size for all parts instead.
    Raises ValueError for a negative context or one beyond the model's own, a batch below 1, an
    unknown precision, and parts left out.
    """
    require_context(config, context, least=0)
    require_count("batch", batch)
    numbers = cache_numbers(config, context)
    if bytes_per_number is not None:
        require_count("bytes_per_number", bytes_per_number)
        return {part: n * bytes_per_number * batch for part, n in numbers.items()}
    names = _by_part(precision, numbers)
    if isinstance(precision, str) and precision != "float64":
        names |= dict.fromkeys(STATES, "float32")
    return {part: batch * _bytes(part, n, names[part]) for part, n in numbers.items()}


def cache_bytes(
    config: Any,
    context: int,
    *,
    precision: Precision = "bfloat16",
    bytes_per_number: int | None = None,
    batch: int = 1,
) -> int:
    """Bytes remembered in all; everything as in `cache_parts`."""
    parts = cache_parts(
        config, context, precision=precision, bytes_per_number=bytes_per_number, batch=batch
    )
    return sum(parts.values())


@cache_numbers.register
def _(config: GPT2Config, context: int) -> Parts:
    each = config.num_layers * config.width * context
    return {"keys": each, "values": each}


@cache_numbers.register
def _(config: OneMemoryConfig, context: int) -> Parts:
    D, L = config.width, config.num_layers
    neighbours = {"neighbours": L * (config.conv_size - 1) * D}
    if config.memory == "softmax":
        return neighbours | {"keys": L * D * context, "values": L * D * context}
    return neighbours | {"state": L * D * D // config.num_heads}  # K x V in each of H heads


@cache_numbers.register
def _(config: KimiLinearConfig | KimiK3Config, context: int) -> Parts:
    mla_layers = len(config.mla_layers)
    kda_layers = config.num_layers - mla_layers
    inner = config.kda_heads * config.kda_head_width
    return {
        "neighbours": kda_layers * 3 * (config.conv_size - 1) * inner,
        "state": kda_layers * inner * config.kda_head_width,
        "latents": mla_layers * config.kv_rank * context,
        "shared keys": mla_layers * config.shared_key_width * context,
    }


def _by_part(precision: Precision, parts: Collection[str]) -> dict[str, str]:
    """The name of a precision for each part. Raises ValueError for missing and other parts."""
    if isinstance(precision, str):
        return dict.fromkeys(parts, precision)
    fits = isinstance(precision, Mapping)
    require(fits, "precision", repr(precision), f"one of {[*BYTES_OF_GROUP]}, or one a part")
    missing, others = set(parts) - set(precision), set(precision) - set(parts)
    needs = f"a name for each of {[*parts]}"
    require(not missing, "precision", f"nothing for {sorted(missing)}", needs)
    require(not others, "precision", f"unknown parts {sorted(others)}", needs)
    return dict(precision)


def _bytes(part: str, numbers: int, precision: str) -> int:
    known = isinstance(precision, str) and precision in BYTES_OF_GROUP
    require(known, "precision", f"{precision!r} for {part}", f"one of {[*BYTES_OF_GROUP]}")
    total = numbers * BYTES_OF_GROUP[precision]
    whole = total % GROUP == 0
    require(
        whole, "precision", f"mxfp4 for {part}", f"groups of {GROUP}, not {numbers} numbers"
    )
    return total // GROUP
