"""FLOPs of the matrix products, two for each multiply-add, the output head at every position.

Norms, softmax and activations are left out, as usual: a few in a hundred. Short convolutions,
and what a state does token by token, count though no matrix is multiplied there.
"""

from functools import singledispatch
from typing import Any, NamedTuple

from llmcourse.accounting.common import Parts, require_context, unknown
from llmcourse.models import GPT2Config, KimiK3Config, KimiLinearConfig, OneMemoryConfig
from llmcourse.ops.common import require

CHUNK = 64  # the default of the chunked forms in llmcourse.ops
FORMS = ("causal", "forward")


class Reading(NamedTuple):
    """One call of a model, for counting.

    tokens: that it reads, Tq.
    keys: tokens whose keys are there, Tk: these and those before them.
    pairs: of a query and a key that softmax attention multiplies.
    chunk: tokens of a chunk, a power of two, where states are carried from chunk to chunk;
        0: token by token.
    """

    tokens: int
    keys: int
    pairs: int
    chunk: int = 0


@singledispatch
def flops_parts(config: Any, reading: Reading) -> Parts:
    """FLOPs by part of one call of the model. Raises TypeError for an unknown configuration."""
    raise unknown(config)


def decode_flops_parts(config: Any, context: int) -> Parts:
    """FLOPs by part for one new token, the `context`-th, with all before it in the cache.

    Raises ValueError for a context below 1 or beyond the model's own.
    """
    require_context(config, context, least=1)
    return flops_parts(config, Reading(tokens=1, keys=context, pairs=context))


def decode_flops(config: Any, context: int) -> int:
    """FLOPs for one new token, the `context`-th: it reads `context` positions, itself too."""
    return sum(decode_flops_parts(config, context).values())


def prefill_flops_parts(config: Any, context: int, *, form: str = "causal") -> Parts:
    """FLOPs by part for reading `context` tokens at once, from the first on.

    form: "causal": a token is multiplied with those that it may see, 1 + 2 + ... + context
        pairs, and states go token by token. Without latent attention this is the sum of
        decode_flops(1 ... context); with it at most that, as keys and values, once they are
        rebuilt, have fewer channels than the latents that a single token reads.
        "forward": what `model(ids)` does: whole T x T matrices, masked afterwards, and states
        in chunks, the last one filled up. Of the chunked forms only matrix products count.
    Latent attention is counted in the form that its layer would choose, the one with fewer
    products: here the explicit one if K + V <= 2 R.
    Raises ValueError for another form, and a context below 1 or beyond the model's own.
    """
    require(form in FORMS, "form", repr(form), f"one of {FORMS}")
    require_context(config, context, least=1)
    T = context
    if form == "causal":
        return flops_parts(config, Reading(T, T, pairs=T * (T + 1) // 2))
    chunk = 1 << (min(CHUNK, T) - 1).bit_length()
    return flops_parts(config, Reading(T, T, pairs=T * T, chunk=chunk))


def prefill_flops(config: Any, context: int, *, form: str = "causal") -> int:
    """FLOPs for reading `context` tokens at once; everything as in `prefill_flops_parts`."""
    return sum(prefill_flops_parts(config, context, form=form).values())


@flops_parts.register
def _(config: GPT2Config, reading: Reading) -> Parts:
    D, L, T = config.width, config.num_layers, reading.tokens
    return {
        "attention projections": T * L * 2 * 4 * D * D,
        "attention scores": L * 2 * reading.pairs * D,
        "attention sums": L * 2 * reading.pairs * D,
        "MLP": T * L * 2 * 2 * D * config.mlp_width,
        "head": T * 2 * D * config.vocab_size,
    }


@flops_parts.register
def _(config: OneMemoryConfig, reading: Reading) -> Parts:
    D, L, H, T = config.width, config.num_layers, config.num_heads, reading.tokens
    kind, K = config.memory, config.width // config.num_heads
    memory = {"projections": T * 2 * 4 * D * D}
    if kind == "softmax":
        memory |= {"scores": 2 * reading.pairs * D, "sums": 2 * reading.pairs * D}
    else:
        memory |= {part: H * n for part, n in state_flops(kind, K, K, reading).items()}
    if kind not in ("softmax", "linear"):
        memory["write strength"] = T * 2 * D * H
    if kind == "gated":
        memory |= {"decay": T * 2 * D * H, "output gate": T * 2 * D * D}
    if kind == "kda":
        thin = T * 2 * 2 * D * K  # a low-rank gate
        memory |= {"decay": thin, "output gate": thin}
    return {part: L * flops for part, flops in memory.items()} | {
        "short convolution": T * L * 2 * config.conv_size * D,
        "MLP": T * L * 2 * 2 * D * config.mlp_ratio * D,
        "head": T * 2 * D * config.vocab_size,
    }


def state_flops(rule: str, K: int, V: int, reading: Reading) -> Parts:
    """FLOPs of one head's state of K x V numbers, by what is done with it.

    rule: "linear", "delta", "gated" or "kda".
    In chunks the state is compared, written and read as often as token by token, but in matrix
    products; "chunks" is what the tokens of a chunk do with one another, fading included.
    """
    C = reading.chunk or 1
    chunks = -(-reading.tokens // C)
    page = chunks * C * 2 * K * V  # a multiply-add for each number and token
    parts = {"write": page, "read": page}
    if rule != "linear":
        parts["compare"] = page
    if reading.chunk:
        parts["chunks"] = chunks * chunk_flops(rule, K, V, C)
    elif rule in ("gated", "kda"):
        parts["fade"] = page // 2  # one multiplication for each number
    return parts


def chunk_flops(rule: str, K: int, V: int, C: int) -> int:
    """FLOPs of the C x C products inside one chunk, as `llmcourse.ops` multiplies them."""
    if rule == "linear":
        return 2 * C * C * (K + V)  # Q K^T, and the sum over V
    # The inverse of a triangle by halves: two products of size x size in each of C / (2 size)
    # blocks, for size = 2, 4, ... C / 2.
    solve = 2 * C * (C * C - 4) // 3 if C > 1 else 0
    # K K^T and Q K^T; KDA's, by halves too, are only what lies below the diagonal.
    scores = 2 * C * (C - 1) * K if rule == "kda" else 4 * C * C * K
    return scores + solve + 2 * C * C * (K + 2 * V)  # W, U and the sum over what is written


@flops_parts.register
def _(config: KimiLinearConfig, reading: Reading) -> Parts:
    c, D = config, config.width
    K, inner = c.kda_head_width, c.kda_heads * c.kda_head_width
    kda = 4 * D * inner + D * c.kda_heads + 2 * (D * K + K * inner)
    queries = D * c.mla_heads * (c.key_width + c.shared_key_width)
    return _kimi_flops(c, reading, kda, queries + D * c.mla_heads * c.value_width, D)


@flops_parts.register
def _(config: KimiK3Config, reading: Reading) -> Parts:
    c, D, Q, T = config, config.width, config.query_rank, reading.tokens
    K, inner = c.kda_head_width, c.kda_heads * c.kda_head_width
    kda = 5 * D * inner + D * c.kda_heads + D * K + K * inner
    queries = D * Q + Q * c.mla_heads * (c.key_width + c.shared_key_width)
    mla = queries + 2 * D * c.mla_heads * c.value_width  # gate and out
    moe_layers = c.num_layers - c.num_dense
    return _kimi_flops(c, reading, kda, mla, c.latent_width) | {
        "latent projections": T * moe_layers * 2 * 2 * D * c.latent_width,
        "attention residuals": T * 2 * 2 * D * _residual_sources(c),
    }


def _kimi_flops(
    c: KimiLinearConfig | KimiK3Config, reading: Reading, kda: int, mla: int, expert_input: int
) -> Parts:
    """What both Kimi models do.

    kda, mla: multiply-adds of a layer's own matrices for one token; for MLA without those of
    the latents. expert_input: channels that a routed expert reads and returns.
    """
    D, T, K = c.width, reading.tokens, c.kda_head_width
    mla_layers, moe_layers = len(c.mla_layers), c.num_layers - c.num_dense
    kda_layers = c.num_layers - mla_layers
    state = sum(state_flops("kda", K, K, reading).values())
    latents = {part: mla_layers * n for part, n in _latent_flops(c, reading).items()}
    mla += D * (c.kv_rank + c.shared_key_width)
    expert = 3 * expert_input * c.expert_width
    return latents | {
        "KDA projections": T * kda_layers * 2 * kda,
        "short convolutions": T * kda_layers * 2 * 3 * c.conv_size * c.kda_heads * K,
        "KDA state": kda_layers * c.kda_heads * state,
        "MLA projections": T * mla_layers * 2 * mla,
        "dense MLP": T * c.num_dense * 2 * 3 * D * c.dense_width,
        "router": T * moe_layers * 2 * D * c.num_experts,
        "routed experts": T
        * moe_layers
        * 2
        * c.num_active
        * (expert + expert_input),  # and sum
        "shared experts": T * moe_layers * 2 * c.num_shared * 3 * D * c.expert_width,
        "head": T * 2 * D * c.vocab_size,
    }


def _latent_flops(c: KimiLinearConfig | KimiK3Config, reading: Reading) -> Parts:
    """What one MLA does with its latents, in the form with fewer products.

    Explicit: every key and value is rebuilt, Tk times. Absorbed: the same matrices go into the
    queries and into what is read, Tq times, and the heads attend to R channels.
    """
    H, R, S = c.mla_heads, c.kv_rank, c.shared_key_width
    K, V, pairs = c.key_width, c.value_width, 2 * H * reading.pairs
    both = 2 * H * R * (K + V)
    names = "MLA latents", "MLA scores", "MLA sums"
    explicit = reading.keys * both, pairs * (K + S), pairs * V
    absorbed = reading.tokens * both, pairs * (R + S), pairs * R
    return dict(zip(names, min(explicit, absorbed, key=sum), strict=True))


def _residual_sources(config: KimiK3Config) -> int:
    """Sources that all attention residuals read: closed blocks and the open one each time."""
    sublayers, size = 2 * config.num_layers, 2 * config.block_size
    return 1 + sum((i - 1) // size + 2 for i in range(1, sublayers + 1))
