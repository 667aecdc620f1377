"""What a model costs, from its configuration alone: parameters, bytes remembered, arithmetic.

Closed forms; nothing is allocated. A new kind of model registers three functions, for its
parameters, its cache and one decoding step:

    @parameter_parts.register
    def _(config: NewConfig) -> dict[str, int]: ...

FLOPs are those of the matrix products, two for each multiply-add, the output head included at
every position. Norms, softmax and activations are left out, as usual: a few in a hundred.
"""

from functools import singledispatch
from typing import Any

from llmcourse.models import GPT2Config, KimiLinearConfig, OneMemoryConfig
from llmcourse.models.kimi_k3 import KimiK3Config
from llmcourse.ops.common import require

Parts = dict[str, int]


@singledispatch
def parameter_parts(config: Any) -> Parts:
    """Parameters by part of the model; tied weights count once, where they are stored."""
    raise _unknown(config)


@singledispatch
def cache_numbers(config: Any, context: int) -> Parts:
    """Numbers that one sequence leaves in memory after `context` tokens, by part."""
    raise _unknown(config)


@singledispatch
def decode_flops_parts(config: Any, context: int) -> Parts:
    """FLOPs by part for one new token, the `context`-th, with all before it in the cache.

    Every part must be an arithmetic series in `context`: `prefill_flops_parts` sums it so.
    """
    raise _unknown(config)


def parameters(config: Any) -> int:
    """All parameters of the model."""
    return sum(parameter_parts(config).values())


@singledispatch
def active_parameter_parts(config: Any) -> Parts:
    """Parameters that take part in one token, by part: all, in a model without experts.

    An input embedding that is not the head too is left out: a token reads one row of it.
    """
    return parameter_parts(config)


def active_parameters(config: Any) -> int:
    """Parameters that take part in one token; everything as in `active_parameter_parts`."""
    return sum(active_parameter_parts(config).values())


def cache_parts(
    config: Any, context: int, *, bytes_per_number: int = 2, batch: int = 1
) -> Parts:
    """Bytes remembered by part, for `batch` sequences of `context` tokens each.

    bytes_per_number: 2 for bfloat16, 4 for float32 (in which recurrent states are kept).
    Raises ValueError for a negative context, and counts beyond the model's own context length.
    """
    require(context >= 0, "context", context, "0 or more")
    require(bytes_per_number > 0, "bytes_per_number", bytes_per_number, "more than 0")
    require(batch >= 1, "batch", batch, "at least 1")
    numbers = cache_numbers(config, context)
    return {part: n * bytes_per_number * batch for part, n in numbers.items()}


def cache_bytes(config: Any, context: int, *, bytes_per_number: int = 2, batch: int = 1) -> int:
    """Bytes remembered in all; everything as in `cache_parts`."""
    parts = cache_parts(config, context, bytes_per_number=bytes_per_number, batch=batch)
    return sum(parts.values())


def decode_flops(config: Any, context: int) -> int:
    """FLOPs for one new token, the `context`-th: it reads `context` positions, itself too."""
    require(context >= 1, "context", context, "at least 1, the new token itself")
    return sum(decode_flops_parts(config, context).values())


def prefill_flops_parts(config: Any, context: int) -> Parts:
    """FLOPs by part for reading `context` tokens at once, each counting only what it may see.

    The same as decoding them one by one, 1 + 2 + ... + context. A kernel that multiplies whole
    T x T matrices and masks afterwards does up to twice the attention.
    """
    require(context >= 1, "context", context, "at least 1")
    first, last = decode_flops_parts(config, 1), decode_flops_parts(config, context)
    return {part: context * (first[part] + last[part]) // 2 for part in first}


def prefill_flops(config: Any, context: int) -> int:
    """FLOPs for reading `context` tokens at once: the sum of decode_flops(1 ... context)."""
    return sum(prefill_flops_parts(config, context).values())


def _unknown(config: Any) -> TypeError:
    name = type(config).__name__
    return TypeError(f"config is a {name}; nothing is registered for it in accounting")


@parameter_parts.register
def _(config: GPT2Config) -> Parts:
    D, M, L = config.width, config.mlp_width, config.num_layers
    return {
        "token embedding": config.vocab_size * D,  # the head too: it is tied
        "position embedding": config.context_length * D,
        "attention": L * (4 * D * D + 4 * D),  # q, k, v and out, each with a bias
        "MLP": L * (2 * D * M + M + D),
        "LayerNorm": (2 * L + 1) * 2 * D,
    }


@cache_numbers.register
def _(config: GPT2Config, context: int) -> Parts:
    each = config.num_layers * config.width * context
    return {"keys": each, "values": each}


@decode_flops_parts.register
def _(config: GPT2Config, context: int) -> Parts:
    D, M, L = config.width, config.mlp_width, config.num_layers
    return {
        "attention projections": L * 2 * 4 * D * D,
        "attention scores": L * 2 * context * D,
        "attention sums": L * 2 * context * D,
        "MLP": L * 2 * 2 * D * M,
        "head": 2 * D * config.vocab_size,
    }


@parameter_parts.register
def _(config: OneMemoryConfig) -> Parts:
    D, L, M = config.width, config.num_layers, config.mlp_ratio * config.width
    H, K = config.num_heads, config.width // config.num_heads
    memory = {
        "softmax": 4 * D * D + 4 * D,  # q, k, v and out, each with a bias
        "linear": 4 * D * D + K,  # without; a norm shared by the heads
        "delta": 4 * D * D + D * H + K,  # and a write strength for each head
        "gated": 5 * D * D + 2 * D * H + 2 * H + K,  # and a decay for each, an output gate
        "kda": 4 * D * D + 4 * D * K + D * H + H + D + K,  # both gates in two thin matrices
    }
    return {
        "token embedding": config.vocab_size * D,  # the head too: it is tied
        "short convolution": L * D * config.conv_size,
        "memory": L * memory[config.memory],
        "MLP": L * (2 * D * M + M + D),
        "RMSNorm": (2 * L + 1) * D,
    }


@cache_numbers.register
def _(config: OneMemoryConfig, context: int) -> Parts:
    D, L = config.width, config.num_layers
    neighbours = {"neighbours": L * (config.conv_size - 1) * D}
    if config.memory == "softmax":
        return neighbours | {"keys": L * D * context, "values": L * D * context}
    return neighbours | {"state": L * D * D // config.num_heads}  # K x V in each of H heads


@decode_flops_parts.register
def _(config: OneMemoryConfig, context: int) -> Parts:
    D, L, H = config.width, config.num_layers, config.num_heads
    page = 2 * D * D // H  # one multiply-add for each number of the state
    use = {"write": page, "read": page}
    erase = use | {"write strength": 2 * D * H, "compare": page}
    fade = erase | {"fade": page // 2}  # one multiplication for each number
    thin = 2 * 2 * D * (D // H)  # a low-rank gate
    memory = {
        "softmax": {"scores": 2 * context * D, "sums": 2 * context * D},
        "linear": use,
        "delta": erase,
        "gated": fade | {"decay": 2 * D * H, "output gate": 2 * D * D},
        "kda": fade | {"decay": thin, "output gate": thin},
    }
    return {name: L * flops for name, flops in memory[config.memory].items()} | {
        "projections": L * 2 * 4 * D * D,
        "short convolution": L * 2 * config.conv_size * D,
        "MLP": L * 2 * 2 * D * config.mlp_ratio * D,
        "head": 2 * D * config.vocab_size,
    }


@parameter_parts.register
def _(config: KimiLinearConfig) -> Parts:
    c, D = config, config.width
    mla_layers, moe_layers = len(c.mla_layers), c.num_layers - c.num_dense
    K, inner = c.kda_head_width, c.kda_heads * c.kda_head_width
    kda = 4 * D * inner + 3 * inner * c.conv_size + D * c.kda_heads  # q, k, v, out; beta
    kda += 2 * (D * K + K * inner)  # decay and output gate, each in two thin matrices
    kda += inner + c.kda_heads + K  # dt_bias, A_log; the norm of a head
    H, R, S = c.mla_heads, c.kv_rank, c.shared_key_width
    mla = D * H * (c.key_width + S) + D * (R + S) + R  # queries; latents and their norm
    mla += R * H * (c.key_width + c.value_width) + D * H * c.value_width
    return {
        "token embedding": c.vocab_size * D,
        "KDA": (c.num_layers - mla_layers) * kda,
        "MLA": mla_layers * mla,
        "dense MLP": c.num_dense * 3 * D * c.dense_width,
        "router": moe_layers * c.num_experts * D,
        "routed experts": moe_layers * c.num_experts * 3 * D * c.expert_width,
        "shared experts": moe_layers * c.num_shared * 3 * D * c.expert_width,
        "RMSNorm": (2 * c.num_layers + 1) * D,
        "head": c.vocab_size * D,
    }


@parameter_parts.register
def _(config: KimiK3Config) -> Parts:
    c, D, E = config, config.width, config.num_experts
    mla_layers, moe_layers = len(c.mla_layers), c.num_layers - c.num_dense
    K, inner = c.kda_head_width, c.kda_heads * c.kda_head_width
    kda = 5 * D * inner + 3 * inner * c.conv_size + D * c.kda_heads  # also gate, out; beta
    kda += D * K + K * inner + inner + c.kda_heads + K  # decay; the norm of a head
    H, R, Q, S = c.mla_heads, c.kv_rank, c.query_rank, c.shared_key_width
    mla = D * Q + Q + Q * H * (c.key_width + S)
    mla += D * (R + S) + R + R * H * (c.key_width + c.value_width)
    mla += 2 * D * H * c.value_width  # gate and out
    return {
        "token embedding": c.vocab_size * D,
        "KDA": (c.num_layers - mla_layers) * kda,
        "MLA": mla_layers * mla,
        "dense MLP": c.num_dense * 3 * D * c.dense_width,
        "router": moe_layers * E * D,
        "selection biases": moe_layers * E,  # buffers: no gradient moves them
        "latent projections": moe_layers * (2 * D + 1) * c.latent_width,  # a norm between
        "routed experts": moe_layers * E * 3 * c.latent_width * c.expert_width,
        "shared experts": moe_layers * c.num_shared * 3 * D * c.expert_width,
        "attention residuals": (2 * c.num_layers + 1) * 2 * D,
        "RMSNorm": (2 * c.num_layers + 1) * D,
        "head": c.vocab_size * D,
    }


@active_parameter_parts.register
def _(config: KimiLinearConfig | KimiK3Config) -> Parts:
    parts = parameter_parts(config)
    parts["routed experts"] = parts["routed experts"] // config.num_experts * config.num_active
    del parts["token embedding"]
    return parts


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


@decode_flops_parts.register
def _(config: KimiLinearConfig, context: int) -> Parts:
    c, D = config, config.width
    K, inner = c.kda_head_width, c.kda_heads * c.kda_head_width
    kda = 4 * D * inner + D * c.kda_heads + 2 * (D * K + K * inner)
    queries = D * c.mla_heads * (c.key_width + c.shared_key_width)
    return _kimi_flops(c, context, kda, queries + D * c.mla_heads * c.value_width, D)


@decode_flops_parts.register
def _(config: KimiK3Config, context: int) -> Parts:
    c, D, Q = config, config.width, config.query_rank
    K, inner = c.kda_head_width, c.kda_heads * c.kda_head_width
    kda = 5 * D * inner + D * c.kda_heads + D * K + K * inner
    queries = D * Q + Q * c.mla_heads * (c.key_width + c.shared_key_width)
    mla = queries + 2 * D * c.mla_heads * c.value_width  # gate and out
    moe_layers = c.num_layers - c.num_dense
    return _kimi_flops(c, context, kda, mla, c.latent_width) | {
        "latent projections": moe_layers * 2 * 2 * D * c.latent_width,
        "attention residuals": 2 * 2 * D * _residual_sources(c),
    }


def _kimi_flops(
    c: KimiLinearConfig | KimiK3Config, context: int, kda: int, mla: int, expert_input: int
) -> Parts:
    """What both Kimi models do for one token.

    kda, mla: multiply-adds of a layer's own matrices; for MLA without those of the latents.
    expert_input: channels that a routed expert reads and returns.
    """
    D, mla_layers, moe_layers = c.width, len(c.mla_layers), c.num_layers - c.num_dense
    kda_layers, K = c.num_layers - mla_layers, c.kda_head_width
    inner, H, R, S = c.kda_heads * K, c.mla_heads, c.kv_rank, c.shared_key_width
    mla += D * (R + S)
    mla += R * H * (c.key_width + c.value_width)  # into the queries and into what is read
    expert = 3 * expert_input * c.expert_width
    return {
        "KDA projections": kda_layers * 2 * kda,
        "short convolutions": kda_layers * 2 * 3 * c.conv_size * inner,
        "KDA state": kda_layers * 7 * inner * K,  # fade 1; compare, write and read 2 each
        "MLA projections": mla_layers * 2 * mla,
        "MLA scores": mla_layers * 2 * context * H * (R + S),
        "MLA sums": mla_layers * 2 * context * H * R,
        "dense MLP": c.num_dense * 2 * 3 * D * c.dense_width,
        "router": moe_layers * 2 * D * c.num_experts,
        "routed experts": moe_layers * 2 * c.num_active * (expert + expert_input),  # and sum
        "shared experts": moe_layers * 2 * c.num_shared * 3 * D * c.expert_width,
        "head": 2 * D * c.vocab_size,
    }


def _residual_sources(config: KimiK3Config) -> int:
    """Sources that all attention residuals read: closed blocks and the open one each time."""
    sublayers, size = 2 * config.num_layers, 2 * config.block_size
    return 1 + sum((i - 1) // size + 2 for i in range(1, sublayers + 1))
