"""Parameters by part of a model, in all and for one token."""

from functools import singledispatch
from typing import Any

from llmcourse.accounting.common import Parts, unknown
from llmcourse.models import GPT2Config, KimiK3Config, KimiLinearConfig, OneMemoryConfig


@singledispatch
def parameter_parts(config: Any) -> Parts:
    """Parameters by part of the model; tied weights count once, where they are stored.

    The selection biases of routers, which no gradient moves, count in Kimi K3 and not in Kimi
    Linear, as in the numbers that are quoted of both.
    Raises TypeError for a kind of configuration that is not known.
    """
    raise unknown(config)


@singledispatch
def active_parameter_parts(config: Any) -> Parts:
    """Parameters that take part in one token, by part: all, in a model without experts.

    An input embedding that is not the head too is left out: a token reads one row of it.
    """
    return parameter_parts(config)


def parameters(config: Any) -> int:
    """All parameters of the model."""
    return sum(parameter_parts(config).values())


def active_parameters(config: Any) -> int:
    """Parameters that take part in one token; everything as in `active_parameter_parts`."""
    return sum(active_parameter_parts(config).values())


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


@parameter_parts.register
def _(config: KimiLinearConfig) -> Parts:
    c, D = config, config.width
    mla_layers, moe_layers = len(c.mla_layers), c.num_layers - c.num_dense
    K, inner = c.kda_head_width, c.kda_heads * c.kda_head_width
    kda = 4 * D * inner + 3 * inner * c.conv_size + D * c.kda_heads  # q, k, v, out; beta
    kda += 2 * (D * K + K * inner) + K  # decay and output gate, two thin matrices each; a norm
    H, R, S = c.mla_heads, c.kv_rank, c.shared_key_width
    mla = D * H * (c.key_width + S) + D * (R + S) + R  # queries; latents and their norm
    mla += R * H * (c.key_width + c.value_width) + D * H * c.value_width
    return {
        "token embedding": c.vocab_size * D,
        "KDA": (c.num_layers - mla_layers) * kda,
        "KDA rates": (c.num_layers - mla_layers) * (inner + c.kda_heads),  # dt_bias, A_log
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
    kda += D * K + K * inner + K  # decay; the norm of a head
    H, R, Q, S = c.mla_heads, c.kv_rank, c.query_rank, c.shared_key_width
    mla = D * Q + Q + Q * H * (c.key_width + S)
    mla += D * (R + S) + R + R * H * (c.key_width + c.value_width)
    mla += 2 * D * H * c.value_width  # gate and out
    return {
        "token embedding": c.vocab_size * D,
        "KDA": (c.num_layers - mla_layers) * kda,
        "KDA rates": (c.num_layers - mla_layers) * (inner + c.kda_heads),  # dt_bias, A_log
        "MLA": mla_layers * mla,
        "dense MLP": c.num_dense * 3 * D * c.dense_width,
        "router": moe_layers * E * D,
        "selection biases": moe_layers * E,
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
