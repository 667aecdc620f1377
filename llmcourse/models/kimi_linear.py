"""Kimi Linear (Kimi Team 2025): three layers of KDA to one of latent attention, and experts."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from llmcourse.cache import ANY_LENGTH, Cache, LatentCache
from llmcourse.layers.kda import KimiDeltaAttention
from llmcourse.layers.mla import MultiHeadLatentAttention
from llmcourse.layers.mlp import SwiGLU
from llmcourse.layers.moe import MixtureOfExperts
from llmcourse.layers.norm import RMSNorm
from llmcourse.models import checkpoint, tensor_files
from llmcourse.models.common import (
    require_eps,
    require_ids,
    require_own_cache,
    require_positive,
    require_size,
)
from llmcourse.models.dry_run import Report, report
from llmcourse.ops.common import require

MAY_BE_0 = ("num_shared", "num_dense", "shared_key_width")


@dataclass(frozen=True)
class KimiLinearConfig:
    """The numbers that make one Kimi Linear different from another.

    vocab_size: how many tokens it knows.
    width: D, channels of a token's vector.
    num_layers: blocks.
    mla_layers: which of them have latent attention (MLA), counted from 1, in order; the others
        have Kimi Delta Attention (KDA).
    kda_heads, kda_head_width: H heads of K channels; K is also the rank of both gates.
    conv_size: W, tokens that the convolutions of KDA see.
    mla_heads: heads of latent attention.
    kv_rank, key_width, shared_key_width, value_width: R, K, S and V of
        `MultiHeadLatentAttention`.
    num_dense: the first layers, which have one MLP instead of experts.
    dense_width: channels in the middle of that MLP.
    num_experts, num_active, expert_width: E experts in a layer, k of them for a token, and the
        channels in the middle of one.
    num_shared: experts for every token besides.
    num_groups, active_groups, renormalise, scaling: of the `Router`.
    norm_eps: added to the mean square in the RMSNorms, but for the one of the latents, 1e-6.
    Raises ValueError for a value that no Kimi Linear can have.
    """

    vocab_size: int
    width: int
    num_layers: int
    mla_layers: tuple[int, ...]
    kda_heads: int
    kda_head_width: int
    mla_heads: int
    kv_rank: int
    key_width: int
    shared_key_width: int
    value_width: int
    dense_width: int
    num_experts: int
    num_active: int
    expert_width: int
    num_shared: int = 1
    num_dense: int = 1
    conv_size: int = 4
    num_groups: int = 1
    active_groups: int = 1
    renormalise: bool = True
    scaling: float = 2.446
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type is int:
                least = 0 if field.name in MAY_BE_0 else 1
                require_size(field.name, getattr(self, field.name), least)
        _check_mla_layers(self.mla_layers, self.num_layers)
        _check_experts(self)
        needs = f"at most num_layers = {self.num_layers}"
        require(self.num_dense <= self.num_layers, "num_dense", self.num_dense, needs)
        is_bool = type(self.renormalise) is bool
        require(is_bool, "renormalise", repr(self.renormalise), "True or False")
        require_positive("scaling", self.scaling)
        require_eps(self.norm_eps)

    @property
    def context_length(self) -> int:
        """The longest text: there are no positions anywhere, so nothing sets a limit."""
        return ANY_LENGTH

    @classmethod
    def tiny(cls) -> "KimiLinearConfig":
        """Small enough to train on a laptop in a minute."""
        return cls(
            vocab_size=1024,
            width=64,
            num_layers=4,
            mla_layers=(4,),
            kda_heads=4,
            kda_head_width=16,
            mla_heads=4,
            kv_rank=32,
            key_width=16,
            shared_key_width=8,
            value_width=16,
            dense_width=256,
            num_experts=8,
            num_active=2,
            expert_width=64,
        )

    @classmethod
    def kimi_linear_48b(cls) -> "KimiLinearConfig":
        """The release of 2025, "48B-A3B": 27 layers, the last of which breaks the rhythm."""
        return cls(
            vocab_size=163840,
            width=2304,
            num_layers=27,
            mla_layers=(4, 8, 12, 16, 20, 24, 27),
            kda_heads=32,
            kda_head_width=128,
            mla_heads=32,
            kv_rank=512,
            key_width=128,
            shared_key_width=64,
            value_width=128,
            dense_width=9216,
            num_experts=256,
            num_active=8,
            expert_width=1024,
        )


def _check_mla_layers(mla_layers: object, num_layers: int) -> None:
    needs = f"a tuple of whole numbers from 1 to num_layers = {num_layers}, rising"
    fits = isinstance(mla_layers, tuple) and all(type(i) is int for i in mla_layers)
    require(fits, "mla_layers", repr(mla_layers), needs)
    assert isinstance(mla_layers, tuple)
    rising = all(a < b for a, b in pairwise((0, *mla_layers, num_layers + 1)))
    require(rising, "mla_layers", repr(mla_layers), needs)


def _check_experts(c: KimiLinearConfig) -> None:
    divides = c.num_experts % c.num_groups == 0
    needs = f"a divisor of num_experts = {c.num_experts}"
    require(divides, "num_groups", c.num_groups, needs)
    needs = f"at most num_groups = {c.num_groups}"
    require(c.active_groups <= c.num_groups, "active_groups", c.active_groups, needs)
    open_to_a_token = c.num_experts // c.num_groups * c.active_groups
    needs = f"at most the {open_to_a_token} experts that a token may choose from"
    require(c.num_active <= open_to_a_token, "num_active", c.num_active, needs)


class Block(nn.Module):
    """One layer: a look into memory, then each token alone.

    Both parts read a normalised copy of x and add what they found to x itself.
    number: of the layer, counted from 1, as in the configuration.
    forward: x [B, T, D] -> [B, T, D]; `memory`: what `new_memory` of the mixer made, or None.
    """

    def __init__(self, config: KimiLinearConfig, number: int) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(config.width, config.norm_eps)
        self.mixer = _mla(config) if number in config.mla_layers else _kda(config)
        self.norm_2 = RMSNorm(config.width, config.norm_eps)
        self.mlp: nn.Module
        if number <= config.num_dense:
            self.mlp = SwiGLU(config.width, config.dense_width)
        else:
            self.mlp = _experts(config)

    def forward(self, x: Tensor, memory: Cache | LatentCache | None = None) -> Tensor:
        x = x + self.mixer(self.norm_1(x), memory)
        return x + self.mlp(self.norm_2(x))


def _kda(c: KimiLinearConfig) -> KimiDeltaAttention:
    K = c.kda_head_width
    return KimiDeltaAttention(
        *(c.width, c.kda_heads, K),
        gate_rank=K,
        output_gate_rank=K,
        conv_size=c.conv_size,
        norm_eps=c.norm_eps,
    )


def _mla(c: KimiLinearConfig) -> MultiHeadLatentAttention:
    return MultiHeadLatentAttention(
        *(c.width, c.mla_heads),
        kv_rank=c.kv_rank,
        key_width=c.key_width,
        shared_key_width=c.shared_key_width,
        value_width=c.value_width,
    )


def _experts(c: KimiLinearConfig) -> MixtureOfExperts:
    return MixtureOfExperts(
        *(c.width, c.expert_width, c.num_experts, c.num_active),
        num_shared=c.num_shared,
        num_groups=c.num_groups,
        active_groups=c.active_groups,
        renormalise=c.renormalise,
        scaling=c.scaling,
    )


class KimiLinear(nn.Module):
    """Kimi Linear with the given shape and fresh weights (from PyTorch's global generator).

    Kimi Team 2025 (arXiv:2510.26692). No position is told to it: order is in what KDA forgets.
    forward: ids [B, T] int64 -> logits [B, T, vocab_size]; row t scores the token after t.
        With a `cache`, the T tokens continue the ones it holds, and are added to it.
    Raises ValueError, changing nothing, for ids outside the vocabulary and for a cache that no
    model of this configuration made.
    """

    def __init__(self, config: KimiLinearConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config, i + 1) for i in range(config.num_layers))
        self.final_norm = RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        for matrix in (self.token_embedding, self.head):  # the layers have made their own
            nn.init.normal_(matrix.weight, std=0.02)  # logits begin near zero

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        require_ids(ids, self.config.vocab_size)
        require_own_cache(cache, self.config)
        x = self.token_embedding(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[i])
        return self.head(self.final_norm(x))

    def new_cache(self, batch: int = 1) -> Cache:
        """An empty memory for `batch` sequences of any length."""
        mixers = [block.mixer for block in self.blocks if isinstance(block, Block)]
        return Cache([mixer.new_memory(batch) for mixer in mixers], made_for=self.config)

    @classmethod
    def from_pretrained(
        cls, path_or_repo_id: str | Path, *, dtype: torch.dtype | None = None
    ) -> "KimiLinear":
        """A model from a checkpoint in the layout of moonshotai/Kimi-Linear-48B-A3B-Base.

        The names and the config.json of `transformers`' own class are read as well.
        path_or_repo_id: a folder (no network is used), or a repository on the Hugging Face Hub.
        dtype: of the weights; by default as stored. What chooses experts and what decides how
            fast a page fades stay in float32 at least; `model.to(dtype)` would round them too.
        Raises CheckpointError with everything that is missing, unexpected or misshapen.
        """
        folder = checkpoint.find(path_or_repo_id)
        config = config_from_public(checkpoint.read_json(folder / checkpoint.CONFIG))
        files = PublishedTensors(tensor_files.in_folder(folder))
        model, published = _matched(config, files)
        shapes = {name: x.shape for name, x in model.state_dict().items()}

        def read(name: str) -> Tensor:
            tensors = [files.read(n) for n in published[name]]  # an expert each, or one
            return torch.stack(tensors).view(shapes[name])

        checkpoint.fill(model, read, dtype, exact=EXACT)
        return model

    @classmethod
    def inspect_pretrained(cls, path_or_repo_id: str | Path) -> Report:
        """What `from_pretrained` would load, its sizes by part: `print` the report.

        Only config.json, the index and the headers of the files are read, or fetched.
        Raises CheckpointError as `from_pretrained`.
        """
        public, files = tensor_files.headers_of(path_or_repo_id)
        tensors = PublishedTensors(files)
        model, published = _matched(config_from_public(public), tensors)
        part_of = partial(_part_of, config=model.config)
        found = tensors.tensors
        return report(model, published, found, files, part_of=part_of, exact=EXACT)

    def save_pretrained(self, folder: str | Path, *, max_shard_bytes: int = 5 * 10**9) -> None:
        """Write the folder that `from_pretrained` reads, in the published layout.

        max_shard_bytes: the most bytes of tensors in one file; beyond it they are sharded.
        Weights that are there already are replaced; whatever fails leaves them as they were.
        """
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.state_dict().items():
            tensors |= published_tensors(name, tensor)
        public = config_to_public(self.config)
        checkpoint.write(folder, public, tensors, max_shard_bytes=max_shard_bytes)


# Our names and the published ones; those of a block come after `blocks.{i}.` and
# `model.layers.{i}.`. {e} stands for the expert, of which ours are stacked.
PUBLIC_NAMES = {
    "token_embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
PUBLIC_BLOCK_NAMES = {
    "norm_1.weight": "input_layernorm.weight",
    "norm_2.weight": "post_attention_layernorm.weight",
    # KDA
    "mixer.q.linear.weight": "self_attn.q_proj.weight",
    "mixer.k.linear.weight": "self_attn.k_proj.weight",
    "mixer.v.linear.weight": "self_attn.v_proj.weight",
    "mixer.q.conv.weight": "self_attn.q_conv1d.weight",
    "mixer.k.conv.weight": "self_attn.k_conv1d.weight",
    "mixer.v.conv.weight": "self_attn.v_conv1d.weight",
    "mixer.beta.weight": "self_attn.b_proj.weight",
    "mixer.decay.A_log": "self_attn.A_log",
    "mixer.decay.dt_bias": "self_attn.dt_bias",
    "mixer.decay.project.0.weight": "self_attn.f_a_proj.weight",
    "mixer.decay.project.1.weight": "self_attn.f_b_proj.weight",
    "mixer.output_gate.0.weight": "self_attn.g_a_proj.weight",
    "mixer.output_gate.1.weight": "self_attn.g_b_proj.weight",
    "mixer.norm.weight": "self_attn.o_norm.weight",
    # MLA
    "mixer.query.weight": "self_attn.q_proj.weight",
    "mixer.latent_down.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "mixer.latent_norm.weight": "self_attn.kv_a_layernorm.weight",
    "mixer.latent_up.weight": "self_attn.kv_b_proj.weight",
    # both
    "mixer.out.weight": "self_attn.o_proj.weight",
    # one MLP
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
    # experts
    "mlp.router.weight": "block_sparse_moe.gate.weight",
    "mlp.router.bias": "block_sparse_moe.gate.e_score_correction_bias",
    "mlp.experts.gate": "block_sparse_moe.experts.{e}.w1.weight",
    "mlp.experts.up": "block_sparse_moe.experts.{e}.w3.weight",
    "mlp.experts.down": "block_sparse_moe.experts.{e}.w2.weight",
    "mlp.shared.gate.weight": "block_sparse_moe.shared_experts.gate_proj.weight",
    "mlp.shared.up.weight": "block_sparse_moe.shared_experts.up_proj.weight",
    "mlp.shared.down.weight": "block_sparse_moe.shared_experts.down_proj.weight",
}
EXACT = ("A_log", "dt_bias", "router.weight", "router.bias")  # endings of our names


def published_tensors(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One tensor of ours as it is published, by its name or names there; views of it."""
    if name in PUBLIC_NAMES:
        return {PUBLIC_NAMES[name]: tensor}
    _, layer, part = name.split(".", maxsplit=2)
    public = f"model.layers.{layer}.{PUBLIC_BLOCK_NAMES[part]}"
    if "{e}" in public:
        return {public.format(e=e): expert for e, expert in enumerate(tensor.unbind())}
    if part.endswith("A_log"):
        return {public: tensor.view(1, 1, -1, 1)}
    return {public: tensor.unsqueeze(1) if part.endswith("conv.weight") else tensor}


def _matched(
    config: KimiLinearConfig, files: "PublishedTensors"
) -> tuple[KimiLinear, dict[str, list[str]]]:
    """A model on the meta device, and our name -> published names, which fit it."""
    counts = {"num_layers": config.num_layers}
    if config.num_dense < config.num_layers:
        counts["num_experts"] = config.num_experts
    model = checkpoint.on_meta(partial(KimiLinear, config), files.tensors, **counts)
    published = {n: published_tensors(n, x) for n, x in model.state_dict().items()}
    needed = {n: tuple(x.shape) for part in published.values() for n, x in part.items()}
    checkpoint.compare(needed, files.tensors, files.where)
    return model, {name: list(part) for name, part in published.items()}


# The first word that is in one of our names says to which part, as `accounting` names them, it
# belongs.
PARTS = {
    "token_embedding": "token embedding",
    "head": "head",
    "shared.": "shared experts",
    "experts.": "routed experts",
    "router.bias": "selection biases",
    "router.": "router",
    "mlp.": "dense MLP",
    "norm_": "RMSNorm",  # norm_1 and norm_2; the mixers have their own
    "final_norm": "RMSNorm",
    "A_log": "KDA rates",
    "dt_bias": "KDA rates",
}


def _part_of(name: str, config: KimiLinearConfig) -> str:
    for word, part in PARTS.items():
        if word in name:
            return part
    return "MLA" if int(name.split(".")[1]) + 1 in config.mla_layers else "KDA"


class PublishedTensors:
    """A checkpoint's tensors by their published names, however they are stored.

    `transformers` renames some when it loads them, joins the convolutions of q, k and v, and
    stacks the experts; with `save_original_format=False` it saves them so. Here they come
    apart again.
    tensors: published name -> shape and kind of number.
    Raises CheckpointError when one name is there in both ways.
    """

    def __init__(self, files: tensor_files.TensorFiles) -> None:
        self.where = files.where
        self.tensors: dict[str, checkpoint.Stored] = {}
        self._places: dict[str, tuple[str, Any]] = {}
        twice = []
        for stored, (shape, dtype) in files.tensors.items():
            for name, part in _parts(stored, shape):
                if name in self.tensors:
                    twice.append(f"twice: {name}, in {self._places[name][0]} and {stored}")
                piece = tuple(torch.empty(shape, device="meta")[part].shape)
                self.tensors[name] = checkpoint.Stored(piece, dtype)
                self._places[name] = stored, part
        checkpoint.fail_if(twice, files.where)
        self._stored = lru_cache(maxsize=1)(files.read)  # its parts are asked for in a row

    def read(self, name: str) -> Tensor:
        """One tensor, as stored."""
        stored, part = self._places[name]
        return self._stored(stored)[part]


MAX_EXPERTS = 4096  # in one tensor; published models have below 1,000


def _parts(stored: str, shape: checkpoint.Shape) -> Iterator[tuple[str, Any]]:
    """The published names of a stored tensor, and the index at which each is found in it."""
    name = stored.replace(".self_attn.forget_gate.", ".self_attn.")
    # It has one name for both kinds of MLP, and saves the other's for the dense ones.
    name = name.replace(".block_sparse_moe.", ".mlp.")
    if not any(f".mlp.{part}_proj." in name for part in ("gate", "up", "down")):
        name = name.replace(".mlp.", ".block_sparse_moe.")
    before = name.rpartition(".")[0]
    stacked = (
        len(shape) == 3 and shape[0] <= MAX_EXPERTS
    )  # others are not a model's: unexpected
    if name.endswith(".self_attn.conv1d.weight") and len(shape) == 3:
        each = shape[0] // 3
        for i, letter in enumerate("qkv"):
            public = name.replace(".conv1d.", f".{letter}_conv1d.")
            yield public, slice(i * each, (i + 1) * each if letter != "v" else None)
    elif name.endswith(".experts.gate_up_proj") and stacked:
        half = shape[1] // 2
        for e in range(shape[0]):
            yield f"{before}.{e}.w1.weight", (e, slice(half))
            yield f"{before}.{e}.w3.weight", (e, slice(half, None))
    elif name.endswith(".experts.down_proj") and stacked:
        yield from ((f"{before}.{e}.w2.weight", e) for e in range(shape[0]))
    else:
        yield name, ...


# Both dialects of config.json: what has one name in them.
PUBLIC_CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "mla_heads",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "key_width",
    "qk_rope_head_dim": "shared_key_width",
    "v_head_dim": "value_width",
    "intermediate_size": "dense_width",
    "num_experts": "num_experts",
    "num_experts_per_token": "num_active",
    "moe_intermediate_size": "expert_width",
    "num_shared_experts": "num_shared",
    "num_expert_group": "num_groups",
    "topk_group": "active_groups",
    "moe_renormalize": "renormalise",
    "routed_scaling_factor": "scaling",
    "rms_norm_eps": "norm_eps",
}
# KDA's numbers: in `transformers`' dialect, and within `linear_attn_config` in the original.
LINEAR_CONFIG = {
    "linear_num_heads": "kda_heads",
    "linear_head_dim": "kda_head_width",
    "linear_conv_kernel_dim": "conv_size",
}
ORIGINAL_LINEAR = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
ORIGINAL_LAYERS = {"kda_layers": "linear_attention", "full_attn_layers": "full_attention"}
# Settings of other variants, with the values under which they are Kimi Linear.
FIXED: dict[str, list[Any]] = {
    "model_type": ["kimi_linear"],
    "hidden_act": ["silu"],
    "q_lora_rank": [None],
    "mla_use_nope": [True],
    "mla_use_output_gate": [False],
    "attention_bias": [False],
    "moe_layer_freq": [1],
    "moe_router_activation_func": ["sigmoid"],
    "topk_method": ["noaux_tc"],
    "use_grouped_topk": [True],
    "num_nextn_predict_layers": [0],
    "tie_word_embeddings": [False],
}
# Keys that published files carry and that do not change what the network computes.
BOOKKEEPING = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "head_dim",  # in neither dialect the width of a head that is used
    "initializer_range",
    "model_max_length",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "qk_head_dim",  # the sum of two that are read
    "rope_parameters",  # of no use without rotary embeddings, as the next two
    "rope_scaling",
    "rope_theta",
    "torch_dtype",
    "transformers_version",
    "use_cache",
]


def config_from_public(public: Mapping[str, Any]) -> KimiLinearConfig:
    """The configuration in a published config.json, of either dialect.

    Raises CheckpointError for other models, and for lists of layers that do not fit.
    """
    public = _in_one_dialect(public)
    fixed = FIXED | {"num_key_value_heads": [public.get("num_attention_heads"), None]}
    numbers = PUBLIC_CONFIG | LINEAR_CONFIG
    read = [*numbers, "layer_types", "mlp_layer_types"]
    checkpoint.check_config(public, read=read, fixed=fixed, bookkeeping=BOOKKEEPING)
    types, mlps = public["layer_types"], public["mlp_layer_types"]
    problems = _layer_problems(public["num_hidden_layers"], types, mlps)
    checkpoint.fail_if(problems, checkpoint.CONFIG)
    mla = tuple(i for i, kind in enumerate(types, start=1) if kind == "full_attention")
    try:
        values = {ours: public[key] for key, ours in numbers.items()}
        return KimiLinearConfig(**values, mla_layers=mla, num_dense=mlps.count("dense"))
    except ValueError as error:
        raise checkpoint.CheckpointError(f"{checkpoint.CONFIG}: {error}") from error


def _layer_problems(num_layers: Any, types: Any, mlps: Any) -> list[str]:
    """What is wrong with the lists of layers of `transformers`' dialect."""
    problems = []
    allowed = {
        "layer_types": [*ORIGINAL_LAYERS.values()],
        "mlp_layer_types": ["dense", "sparse"],
    }
    for (key, kinds), given in zip(allowed.items(), (types, mlps), strict=True):
        if not isinstance(given, list) or len(given) != num_layers:
            problems.append(f"{key}: needs a list of num_hidden_layers = {num_layers} kinds")
        elif any(kind not in kinds for kind in given):
            problems.append(f"{key}: every kind must be one of {kinds}")
    if not problems and mlps != sorted(mlps):  # "dense" is before "sparse"
        problems.append("mlp_layer_types: the dense layers must be the first; reorder them")
    return problems


def _in_one_dialect(public: Mapping[str, Any]) -> dict[str, Any]:
    """The original dialect in the words of the other, which is returned as it is.

    `transformers` keeps the original keys beside its own: they must say the same.
    """
    public = dict(public)
    original = public.pop("linear_attn_config", None)
    if original is None:
        return public
    checkpoint.fail_if(_original_problems(original, public), checkpoint.CONFIG)
    num_layers, dense = public["num_hidden_layers"], public.pop("first_k_dense_replace")
    kinds = {i: kind for key, kind in ORIGINAL_LAYERS.items() for i in original[key]}
    translated = {theirs: original[key] for key, theirs in ORIGINAL_LINEAR.items()} | {
        "layer_types": [kinds[i] for i in range(1, num_layers + 1)],
        "mlp_layer_types": ["dense" if i < dense else "sparse" for i in range(num_layers)],
    }
    differ = [
        f"{key}: linear_attn_config and first_k_dense_replace say {value}, but it is "
        f"{checkpoint.shown(public[key])}: remove one of them"
        for key, value in translated.items()
        if key in public and public[key] != value
    ]
    checkpoint.fail_if(differ, checkpoint.CONFIG)
    return public | translated


def _original_problems(original: Any, public: Mapping[str, Any]) -> list[str]:
    """What is wrong with the keys that only the original dialect has."""
    if not isinstance(original, dict):
        return ["linear_attn_config: needs an object"]
    keys = [*ORIGINAL_LINEAR, *ORIGINAL_LAYERS]
    problems = [f"missing: linear_attn_config.{key}" for key in keys if key not in original]
    for key, value in original.items():
        if key not in keys:
            problems.append(
                f"unknown, may change the computation: linear_attn_config.{key} = "
                f"{checkpoint.shown(value)}"
            )
    if public.get("mla_use_nope") is not True:
        problems.append("mla_use_nope: needs true; without it there are rotary embeddings")
    for key in ("num_hidden_layers", "first_k_dense_replace"):
        value = public.get(key)
        if type(value) is not int or value < 0:
            problems.append(f"{key}: needs a whole number, got {checkpoint.shown(value)}")
    return problems or _partition_problems(original, public["num_hidden_layers"])


def _partition_problems(original: Mapping[str, Any], num_layers: int) -> list[str]:
    """Every layer, counted from 1, must be in one of the two lists, and once."""
    lists = {key: original[key] for key in ORIGINAL_LAYERS}
    problems = [
        f"linear_attn_config.{key}: needs a list of whole numbers"
        for key, layers in lists.items()
        if not isinstance(layers, list) or any(type(i) is not int for i in layers)
    ]
    if problems:
        return problems
    named = Counter(i for layers in lists.values() for i in layers)
    where = " and ".join(lists)
    for i in sorted({*named, *_first_gaps(named, num_layers)}):
        if not 1 <= i <= num_layers:
            problems.append(f"layer {i} is in {where}: remove it, they are 1 to {num_layers}")
        elif named[i] == 0:
            problems.append(f"layer {i} is in neither of {where}: add it to one")
        elif named[i] > 1:
            problems.append(f"layer {i} is {named[i]} times in {where}: keep one")
    return problems


def _first_gaps(named: Collection[int], num_layers: int) -> Iterator[int]:
    """Layers that nothing names; 100 of them, as num_layers may be any number."""
    return islice((i for i in range(1, num_layers + 1) if i not in named), 100)


def config_to_public(config: KimiLinearConfig) -> dict[str, Any]:
    """The published config.json for a configuration, in the original dialect."""
    numbers = {key: getattr(config, ours) for key, ours in PUBLIC_CONFIG.items()}
    numbers["routed_scaling_factor"] = float(config.scaling)  # `transformers` refuses a whole 1
    linear: dict[str, Any] = {
        key: getattr(config, LINEAR_CONFIG[theirs]) for key, theirs in ORIGINAL_LINEAR.items()
    }
    layers, mla = range(1, config.num_layers + 1), config.mla_layers
    linear |= {"kda_layers": [i for i in layers if i not in mla], "full_attn_layers": [*mla]}
    return (
        {key: values[0] for key, values in FIXED.items()}
        | numbers
        | {
            "architectures": ["KimiLinearForCausalLM"],
            "bos_token_id": None,  # a tokenizer's business; others put their own when absent
            "eos_token_id": None,
            "pad_token_id": None,
            "first_k_dense_replace": config.num_dense,
            "linear_attn_config": linear,
            "num_key_value_heads": config.mla_heads,
        }
    )
