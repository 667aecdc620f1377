"""Kimi K3 (Kimi Team 2026, arXiv:2607.24653), its text model: what all chapters led to."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from llmcourse.cache import Cache
from llmcourse.layers.attn_res import AttentionResidual, ResidualBlocks
from llmcourse.layers.kda import KimiDeltaAttention
from llmcourse.layers.mla import PUBLIC_NAMES as MLA_NAMES
from llmcourse.layers.mla import MultiHeadLatentAttention
from llmcourse.layers.mlp import SiTUGLU, situ
from llmcourse.layers.moe import LatentMoE
from llmcourse.layers.norm import RMSNorm
from llmcourse.models import checkpoint, mxfp4, tensor_files
from llmcourse.models.common import (
    LIMIT,
    require_eps,
    require_ids,
    require_own_cache,
    require_positive,
    require_size,
)
from llmcourse.models.dry_run import Report, report
from llmcourse.ops.common import require, require_number


@dataclass(frozen=True)
class KimiK3Config:
    """The numbers that make one Kimi K3 different from another.

    vocab_size: how many tokens it knows.
    width: D, channels of a token's vector.
    num_layers: each with an attention and a feed-forward part.
    mla_layers: which layers have latent attention (MLA), counted from 1, in order; the others
        have Kimi Delta Attention (KDA).
    kda_heads, kda_head_width: H heads of K channels; K also is the rank of the decay gate.
    mla_heads: heads of MLA.
    query_rank, kv_rank: channels of MLA's latents.
    key_width, shared_key_width, value_width: channels of MLA's heads.
    num_dense: the first layers, whose feed-forward part is one MLP.
    dense_width: channels in its middle.
    latent_width: channels that the routed experts of the other layers see.
    expert_width: channels in the middle of one expert.
    num_experts, num_active, num_shared: routed experts, how many of them a token visits, and
        the experts that all visit.
    block_size: layers whose outputs attention residuals see as one sum.
    conv_size: tokens that the short convolutions of KDA see.
    lower_bound: the fastest decay of KDA, in log space.
    situ_beta, situ_linear_beta: bounds of the activation.
    scaling: multiplies the weights of the routed experts.
    norm_eps: added to the mean square in every RMSNorm, but for those of MLA's latents: 1e-6.
    context_length: the longest text it was trained on. There are no position vectors, so the
        model itself sets no limit.
    Raises ValueError for a value that no Kimi K3 can have.
    """

    vocab_size: int
    width: int
    num_layers: int
    mla_layers: tuple[int, ...]
    kda_heads: int
    kda_head_width: int
    mla_heads: int
    query_rank: int
    kv_rank: int
    key_width: int
    shared_key_width: int
    value_width: int
    dense_width: int
    latent_width: int
    expert_width: int
    num_experts: int
    num_active: int
    block_size: int
    num_shared: int = 2
    num_dense: int = 1
    conv_size: int = 4
    lower_bound: float = -5.0
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    scaling: float = 1.0
    norm_eps: float = 1e-5
    context_length: int = 1_048_576

    def __post_init__(self) -> None:
        may_be_0 = {"num_shared", "num_dense", "shared_key_width"}
        floats = {"lower_bound", "situ_beta", "situ_linear_beta", "scaling", "norm_eps"}
        for name in self.__dataclass_fields__.keys() - floats - {"mla_layers"}:
            require_size(name, getattr(self, name), least=0 if name in may_be_0 else 1)
        require_eps(self.norm_eps)
        needs = "a finite number below 0, above -2**31"
        require_number("lower_bound", self.lower_bound, lambda x: -LIMIT < x < 0, needs)
        for name in ("situ_beta", "situ_linear_beta", "scaling"):
            require_positive(name, getattr(self, name))
        self._check_that_they_fit()

    def _check_that_they_fit(self) -> None:
        layers, E, L = self.mla_layers, self.num_experts, self.num_layers
        whole = isinstance(layers, tuple) and all(type(i) is int for i in layers)
        fits = whole and all(a < b for a, b in pairwise((0, *layers, L + 1)))
        needs = f"a tuple of different layers, in order, from 1 to num_layers = {L}"
        require(fits, "mla_layers", repr(layers), needs)
        needs = f"at most num_layers = {L}"
        require(self.num_dense <= L, "num_dense", self.num_dense, needs)
        needs = f"at most num_experts = {E}"
        require(self.num_active <= E, "num_active", self.num_active, needs)

    @classmethod
    def tiny(cls) -> "KimiK3Config":
        """Every part of the large one, small enough to train on a laptop."""
        return cls(
            vocab_size=1024,
            width=128,
            num_layers=5,
            mla_layers=every_fourth_and_last(5),
            kda_heads=4,
            kda_head_width=32,
            mla_heads=4,
            query_rank=64,
            kv_rank=48,
            key_width=32,
            shared_key_width=16,
            value_width=32,
            dense_width=384,
            latent_width=64,
            expert_width=96,
            num_experts=16,
            num_active=4,
            block_size=2,
        )

    @classmethod
    def kimi_k3(cls) -> "KimiK3Config":
        """The release of July 2026, "2.8T": for counting, unless you have 96 files to spare."""
        return cls(
            vocab_size=163_840,
            width=7168,
            num_layers=93,
            mla_layers=every_fourth_and_last(93),
            kda_heads=96,
            kda_head_width=128,
            mla_heads=96,
            query_rank=1536,
            kv_rank=512,
            key_width=128,
            shared_key_width=64,
            value_width=128,
            dense_width=33_792,
            latent_width=3584,
            expert_width=3072,
            num_experts=896,
            num_active=16,
            block_size=12,
        )


def every_fourth_and_last(num_layers: int) -> tuple[int, ...]:
    """Kimi K3's `mla_layers`: three layers that fade, then one that forgets nothing."""
    return tuple(i for i in range(1, num_layers + 1) if i % 4 == 0 or i == num_layers)


class Layer(nn.Module):
    """One layer: a look into memory, then each token alone; each chooses what it reads.

    number: which one, counted from 1.
    forward: reads the sources of `residuals`, [B, T, D] each, and adds two outputs to them.
        `memory`: what `attention.new_memory` made, or None.
    """

    def __init__(self, config: KimiK3Config, number: int) -> None:
        super().__init__()
        D, eps = config.width, config.norm_eps
        self.attention_residual = AttentionResidual(D, eps)
        self.attention_norm = RMSNorm(D, eps)
        self.attention: KimiDeltaAttention | MultiHeadLatentAttention
        self.attention = _mla(config) if number in config.mla_layers else _kda(config)
        self.ffn_residual = AttentionResidual(D, eps)
        self.ffn_norm = RMSNorm(D, eps)
        self.ffn: SiTUGLU | LatentMoE
        self.ffn = _dense(config) if number <= config.num_dense else _experts(config)

    def forward(self, residuals: ResidualBlocks, memory: Any = None) -> None:
        h = self.attention_residual(residuals.sources)
        residuals.add(self.attention(self.attention_norm(h), memory))
        h = self.ffn_residual(residuals.sources)
        residuals.add(self.ffn(self.ffn_norm(h)))


def _kda(c: KimiK3Config) -> KimiDeltaAttention:
    return KimiDeltaAttention(
        c.width,
        c.kda_heads,
        c.kda_head_width,
        gate_rank=c.kda_head_width,
        gate="bounded",
        lower_bound=c.lower_bound,
        conv_size=c.conv_size,
        norm_eps=c.norm_eps,
    )


def _mla(c: KimiK3Config) -> MultiHeadLatentAttention:
    return MultiHeadLatentAttention(
        c.width,
        c.mla_heads,
        kv_rank=c.kv_rank,
        key_width=c.key_width,
        shared_key_width=c.shared_key_width,
        value_width=c.value_width,
        query_rank=c.query_rank,
        output_gate=True,
    )


def _dense(c: KimiK3Config) -> SiTUGLU:
    return SiTUGLU(c.width, c.dense_width, c.situ_beta, c.situ_linear_beta)


def _experts(c: KimiK3Config) -> LatentMoE:
    return LatentMoE(
        c.width,
        c.latent_width,
        c.expert_width,
        c.num_experts,
        c.num_active,
        num_shared=c.num_shared,
        scaling=c.scaling,
        activation=partial(situ, beta=c.situ_beta, linear_beta=c.situ_linear_beta),
        norm_eps=c.norm_eps,
    )


class KimiK3(nn.Module):
    """Kimi K3's text model with the given shape and fresh weights (PyTorch's generator).

    forward: ids [B, T] int64 -> logits [B, T, vocab_size]; row t scores the token after t.
        With a `cache`, the T tokens continue the ones it holds, and are added to it.
    Raises ValueError, changing nothing, for ids outside the vocabulary and for a cache that no
    model of this configuration made.
    """

    def __init__(self, config: KimiK3Config) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config, i + 1) for i in range(config.num_layers))
        self.final_residual = AttentionResidual(config.width, config.norm_eps)
        self.final_norm = RMSNorm(config.width, config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)  # logits begin near zero

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        require_ids(ids, self.config.vocab_size)
        require_own_cache(cache, self.config)
        sublayers = 2 * self.config.block_size
        residuals = ResidualBlocks(self.token_embedding(ids), sublayers)
        for i, layer in enumerate(self.layers):
            layer(residuals, None if cache is None else cache[i])
        return self.head(self.final_norm(self.final_residual(residuals.sources)))

    def new_cache(self, batch: int = 1) -> Cache:
        """An empty memory for `batch` sequences of any length."""
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        memories = [layer.attention.new_memory(batch) for layer in layers]
        return Cache(memories, made_for=self.config)

    @classmethod
    def from_pretrained(
        cls, path_or_repo_id: str | Path, *, dtype: torch.dtype | None = None
    ) -> "KimiK3":
        """A model from a checkpoint in the layout of moonshotai/Kimi-K3, its text part.

        path_or_repo_id: a folder (no network is used), or a repository on the Hugging Face Hub.
        dtype: of the weights; by default as stored, MXFP4 experts like the final norm. Decay
            rates and routers are float32 at least; `model.to(dtype)` would round them too.
        Raises CheckpointError with everything that is missing, unexpected or misshapen.
        """
        folder = checkpoint.find(path_or_repo_id)
        config = config_from_public(checkpoint.read_json(folder / checkpoint.CONFIG))
        files = tensor_files.in_folder(folder)
        model, _ = _matched(config, files)
        tensors = dict(_tensors(model))

        def read(name: str) -> Tensor:
            return _read(files, name, tensors[name], config, dtype)

        checkpoint.fill(model, read, dtype, exact=EXACT)
        return model

    @classmethod
    def inspect_pretrained(cls, path_or_repo_id: str | Path) -> Report:
        """What `from_pretrained` would load, its sizes by part: `print` the report.

        Only config.json, the index and the headers of the files are read, or fetched.
        Raises CheckpointError as `from_pretrained`, but for scales of MXFP4 that are no
        numbers.
        """
        public, files = tensor_files.headers_of(path_or_repo_id)
        model, published = _matched(config_from_public(public), files)
        part_of = partial(_part_of, config=model.config)
        return report(model, published, files.tensors, files, part_of=part_of, exact=EXACT)

    def save_pretrained(
        self,
        folder: str | Path,
        *,
        mxfp4_experts: bool = False,
        max_shard_bytes: int = 5 * 10**9,
    ) -> None:
        """Write the folder that `from_pretrained` reads, in the published layout.

        mxfp4_experts: round the routed experts to MXFP4, as they are published; otherwise they
            are written as they are. Needs widths that are multiples of 32.
        max_shard_bytes: the most bytes of tensors in one file; beyond it they are sharded.
        Raises ValueError, with nothing written, for widths and weights that MXFP4 cannot hold.
        Whatever else fails leaves the weights that were there as they were.
        """
        public, tensors = config_to_public(self.config), dict[str, Tensor]()
        if mxfp4_experts:
            _check_groups(self.config)
            public[QUANTISATION] = MXFP4_SCHEME
        for name, tensor in _tensors(self):
            in_mxfp4 = mxfp4_experts and ".experts." in name
            for key, x in _to_public(name, tensor.detach(), self.config).items():
                tensors |= mxfp4.to_stored(key, x) if in_mxfp4 else {key: x}
        checkpoint.write(folder, public, tensors, max_shard_bytes=max_shard_bytes)


# The published names for ours. They end in `.weight` where ours do.
PREFIX = "language_model."
# Endings of our names: what is published in float32, as it decides what is kept and chosen.
EXACT = ("A_log", "dt_bias", "router.weight", "router.bias")
VISION = ("vision_tower.", "mm_projector.")  # the parts that see: not this course's subject
MODEL_NAMES = {
    "token_embedding": "model.embed_tokens",
    "final_residual.norm": "model.output_attn_res_norm",
    "final_residual.query": "model.output_attn_res_proj",
    "final_norm": "model.norm",
    "head": "lm_head",
}
KDA_NAMES = {
    "q.linear": "q_proj",
    "k.linear": "k_proj",
    "v.linear": "v_proj",
    "q.conv": "q_conv1d",
    "k.conv": "k_conv1d",
    "v.conv": "v_conv1d",
    "beta": "b_proj",
    "decay.A_log": "A_log",
    "decay.dt_bias": "dt_bias",
    "decay.project.0": "f_a_proj",
    "decay.project.1": "f_b_proj",
    "output_gate": "g_proj",
    "norm": "o_norm",
    "out": "o_proj",
}
DENSE_NAMES = {
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
MOE_NAMES = {
    "ffn.router": "block_sparse_moe.gate",
    "ffn.router.bias": "block_sparse_moe.gate.e_score_correction_bias",
    "ffn.down": "block_sparse_moe.routed_expert_down_proj",
    "ffn.norm": "block_sparse_moe.routed_expert_norm",
    "ffn.up": "block_sparse_moe.routed_expert_up_proj",
    "ffn.experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "ffn.experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "ffn.experts.down": "block_sparse_moe.experts.{}.w2.weight",
    "ffn.shared.gate": "block_sparse_moe.shared_experts.gate_proj",
    "ffn.shared.up": "block_sparse_moe.shared_experts.up_proj",
    "ffn.shared.down": "block_sparse_moe.shared_experts.down_proj",
}
LAYER_NAMES = {
    "attention_residual.norm": "self_attention_res_norm",
    "attention_residual.query": "self_attention_res_proj",
    "attention_norm": "input_layernorm",
    "ffn_residual.norm": "mlp_res_norm",
    "ffn_residual.query": "mlp_res_proj",
    "ffn_norm": "post_attention_layernorm",
    **{f"attention.{a}": f"self_attn.{b}" for a, b in (MLA_NAMES | KDA_NAMES).items()},
}


def _public_names(name: str, config: KimiK3Config) -> list[str]:
    """The published names of our tensor `name`: one, or one for each expert."""
    stem = name.removesuffix(".weight")
    ending = name[len(stem) :]
    if not name.startswith("layers."):
        return [PREFIX + MODEL_NAMES[stem] + ending]
    _, layer, part = stem.split(".", 2)
    ffn = DENSE_NAMES if int(layer) < config.num_dense else MOE_NAMES
    public = f"{PREFIX}model.layers.{layer}.{(LAYER_NAMES | ffn)[part]}{ending}"
    if "{}" in public:
        return [public.format(e) for e in range(config.num_experts)]
    return [public]


def _tensors(model: KimiK3) -> Iterator[tuple[str, Tensor]]:
    """All that a checkpoint holds: the parameters, and the selection biases of the routers."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _to_public(name: str, tensor: Tensor, config: KimiK3Config) -> dict[str, Tensor]:
    """One of our tensors as it is published: name -> tensor."""
    names = _public_names(name, config)
    if ".experts." in name:
        return dict(zip(names, tensor.unbind(), strict=True))
    if name.endswith(".conv.weight"):
        return {names[0]: tensor.unsqueeze(1)}  # [channels, 1, W], as nn.Conv1d has it
    if name.endswith("A_log"):
        padding = (0, _padded(len(tensor)) - len(tensor))
        return {names[0]: nn.functional.pad(tensor, padding)}
    return {names[0]: tensor}


def _check_groups(config: KimiK3Config) -> None:
    for name in ("latent_width", "expert_width"):
        width, needs = getattr(config, name), f"a multiple of {mxfp4.GROUP} for MXFP4"
        require(width % mxfp4.GROUP == 0, name, width, f"{needs}, or mxfp4_experts=False")


def _padded(heads: int) -> int:
    """Numbers in a published A_log: the 96 of Kimi K3 are followed by 32 without a meaning."""
    return -(-heads // 128) * 128


def _matched(
    config: KimiK3Config, files: tensor_files.TensorFiles
) -> tuple[KimiK3, dict[str, list[str]]]:
    """A model on the meta device, and our name -> published names, which fit it."""
    found = {n: s for n, s in files.tensors.items() if not n.startswith(VISION)}
    counts = {"num_layers": config.num_layers}
    if config.num_dense < config.num_layers:
        counts["num_experts"] = config.num_experts
    model = checkpoint.on_meta(partial(KimiK3, config), found, **counts)
    stored = {n: _stored_shapes(n, x, config, found) for n, x in _tensors(model)}
    needed = {name: shape for part in stored.values() for name, shape in part.items()}
    checkpoint.compare(needed, found, files.where, in_bytes=mxfp4.ENDINGS)
    return model, {name: list(part) for name, part in stored.items()}


def _stored_shapes(
    name: str, tensor: Tensor, config: KimiK3Config, found: Mapping[str, checkpoint.Stored]
) -> dict[str, checkpoint.Shape]:
    """Published names and shapes of one of our tensors, in the form that a checkpoint has
    chosen: an expert's matrix may come in MXFP4, and A_log without its padding."""
    stored: dict[str, checkpoint.Shape] = {}
    for public, x in _to_public(name, tensor, config).items():
        shape = tuple(x.shape)
        in_mxfp4 = mxfp4.stored_shapes(public, shape) if ".experts." in public else {}
        if in_mxfp4.keys() & found.keys():
            stored |= in_mxfp4
        elif name.endswith("A_log") and public in found and found[public].shape == tensor.shape:
            stored[public] = tuple(tensor.shape)
        else:
            stored[public] = shape
    return stored


# The first word that is in one of our names says to which part, as `accounting` names them, it
# belongs.
PARTS = {
    "token_embedding": "token embedding",
    "residual": "attention residuals",
    "head": "head",
    "router.bias": "selection biases",
    "router.": "router",
    "shared.": "shared experts",
    "experts.": "routed experts",
    "final_norm": "RMSNorm",
    "attention_norm": "RMSNorm",
    "ffn_norm": "RMSNorm",
    "A_log": "KDA rates",
    "dt_bias": "KDA rates",
}


def _part_of(name: str, config: KimiK3Config) -> str:
    for word, part in PARTS.items():
        if word in name:
            return part
    layer = int(name.split(".")[1]) + 1
    if ".attention." in name:
        return "MLA" if layer in config.mla_layers else "KDA"
    return "dense MLP" if layer <= config.num_dense else "latent projections"


def _read(
    files: tensor_files.TensorFiles,
    name: str,
    ours: Tensor,
    config: KimiK3Config,
    dtype: torch.dtype | None,
) -> Tensor:
    """Our tensor `name`, of the shape of `ours`, from its published parts."""
    parts = [_read_one(files, public, dtype) for public in _public_names(name, config)]
    if name.endswith("A_log"):
        return parts[0][: len(ours)]
    return (torch.stack(parts) if ".experts." in name else parts[0]).view(ours.shape)


def _read_one(
    files: tensor_files.TensorFiles, public: str, dtype: torch.dtype | None
) -> Tensor:
    if public in files.tensors:
        return files.read(public)
    packed, scale = (files.read(public + ending) for ending in mxfp4.ENDINGS)
    if dtype is None:
        dtype = files.read(f"{PREFIX}model.norm.weight").dtype
    return mxfp4.dequantise(packed, scale, dtype)


# Numbers in a published config.json, by the part that holds them, and our names for them.
TEXT_NUMBERS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "mla_heads",
    "q_lora_rank": "query_rank",
    "kv_lora_rank": "kv_rank",
    "qk_nope_head_dim": "key_width",
    "qk_rope_head_dim": "shared_key_width",
    "v_head_dim": "value_width",
    "first_k_dense_replace": "num_dense",
    "intermediate_size": "dense_width",
    "routed_expert_hidden_size": "latent_width",
    "moe_intermediate_size": "expert_width",
    "num_experts": "num_experts",
    "num_experts_per_token": "num_active",
    "num_shared_experts": "num_shared",
    "attn_res_block_size": "block_size",
    "activation_situ_beta": "situ_beta",
    "activation_situ_linear_beta": "situ_linear_beta",
    "routed_scaling_factor": "scaling",
    "rms_norm_eps": "norm_eps",
}
KDA_NUMBERS = {
    "num_heads": "kda_heads",
    "head_dim": "kda_head_width",
    "short_conv_kernel_size": "conv_size",
    "gate_lower_bound": "lower_bound",
}
# Settings whose meaning is built in: they must be there, with the value of Kimi K3.
TEXT_FIXED: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_act": "situ",
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "latent_moe_use_norm": True,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}
# Those that a file may leave out.
TEXT_OPTIONAL: dict[str, list[Any]] = {
    "num_expert_group": [1],
    "topk_group": [1],
    "topk_method": ["noaux_tc"],
    "num_nextn_predict_layers": [0],
    "attention_bias": [False],
    "rope_scaling": [None],
}
# Keys that do not change what the text model computes. With mla_use_nope nothing is rotated;
# with one group of experts there is nothing to choose among groups.
BOOKKEEPING = [
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "head_dim",
    "ignore_index",
    "initializer_range",
    "media_placeholder_token_id",
    "pad_token_id",
    "rope_theta",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "use_grouped_topk",
    "vision_config",
]
CONTEXT = "max_position_embeddings"
QUANTISATION = "quantization_config"
MXFP4_FORMAT = "mxfp4-pack-quantized"
# What config.json says of experts in MXFP4, in the words of the library compressed-tensors.
MXFP4_SCHEME: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": MXFP4_FORMAT,
    "config_groups": {
        "group_0": {
            "format": MXFP4_FORMAT,
            "targets": [r"re:.*block_sparse_moe\.experts\..*"],
            "weights": {
                "type": "float",
                "num_bits": 4,
                "strategy": "group",
                "group_size": mxfp4.GROUP,
                "scale_dtype": "torch.uint8",
                "symmetric": True,
                "dynamic": False,
            },
        }
    },
}


def config_from_public(public: Mapping[str, Any]) -> KimiK3Config:
    """The configuration in a published config.json. Raises CheckpointError for other models."""
    may_have = [*BOOKKEEPING, QUANTISATION]
    fixed: dict[str, list[Any]] = {"model_type": ["kimi_k3"], "tie_word_embeddings": [False]}
    checkpoint.check_config(
        public, read=["model_type", "text_config"], fixed=fixed, bookkeeping=may_have
    )
    text = _part(public, "text_config")
    heads = {"num_key_value_heads": [text.get("num_attention_heads")]}
    checkpoint.check_config(
        text,
        read=[*TEXT_NUMBERS, *TEXT_FIXED, "linear_attn_config"],
        fixed={key: [value] for key, value in TEXT_FIXED.items()} | TEXT_OPTIONAL | heads,
        bookkeeping=[*may_have, CONTEXT],
    )
    linear = _part(text, "linear_attn_config")
    checkpoint.check_config(
        linear,
        read=[*KDA_NUMBERS, "use_full_rank_gate", "kda_layers", "full_attn_layers"],
        fixed={"use_full_rank_gate": [True]},
        bookkeeping=[],
    )
    for part in (public, text):
        _check_quantisation(part.get(QUANTISATION))
    numbers = {ours: text[key] for key, ours in TEXT_NUMBERS.items()}
    numbers |= {ours: linear[key] for key, ours in KDA_NUMBERS.items()}
    if CONTEXT in text:
        numbers["context_length"] = text[CONTEXT]
    try:
        return KimiK3Config(mla_layers=_mla_layers(linear, numbers["num_layers"]), **numbers)
    except ValueError as error:
        raise checkpoint.CheckpointError(f"{checkpoint.CONFIG}: {error}") from error


def config_to_public(config: KimiK3Config) -> dict[str, Any]:
    """The published config.json for a configuration."""
    layers = range(1, config.num_layers + 1)
    linear = {key: getattr(config, ours) for key, ours in KDA_NUMBERS.items()}
    linear |= {
        "kda_layers": [i for i in layers if i not in config.mla_layers],
        "full_attn_layers": list(config.mla_layers),
        "use_full_rank_gate": True,
    }
    text = {key: getattr(config, ours) for key, ours in TEXT_NUMBERS.items()} | TEXT_FIXED
    text |= {key: values[0] for key, values in TEXT_OPTIONAL.items()}
    text |= {"linear_attn_config": linear, CONTEXT: config.context_length}
    return {"model_type": "kimi_k3", "text_config": text, "tie_word_embeddings": False}


def _part(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    part = config[key]
    kind = type(part).__name__
    problem = [] if isinstance(part, dict) else [f"{key} is a {kind}, needs an object"]
    checkpoint.fail_if(problem, checkpoint.CONFIG)
    return part


def _mla_layers(linear: Mapping[str, Any], num_layers: Any) -> tuple[int, ...]:
    """The layers with MLA, once the two lists are known to hold each layer exactly once."""
    require_size("num_layers", num_layers)
    kda, mla = linear["kda_layers"], linear["full_attn_layers"]
    for name, layers in {"kda_layers": kda, "full_attn_layers": mla}.items():
        whole = isinstance(layers, list) and all(type(i) is int for i in layers)
        require(whole, name, repr(layers), "a list of whole numbers")
    named, every = Counter([*kda, *mla]), range(1, num_layers + 1)
    gaps = islice((i for i in every if i not in named), 100)  # it may be any number
    problems = [f"layer {i} is in neither list: add it to one" for i in gaps]
    for i in sorted(named):
        if i not in every:
            problems.append(f"layer {i}: take it out, layers go from 1 to {num_layers}")
        elif named[i] > 1:
            problems.append(f"layer {i} is there {named[i]} times: keep one")
    checkpoint.fail_if(problems, f"{checkpoint.CONFIG}, kda_layers and full_attn_layers")
    return tuple(sorted(mla))


def _check_quantisation(scheme: Any) -> None:
    """Refuse weights in another format than MXFP4; the file says so for each of its groups."""
    if scheme is None:
        return
    parts = [scheme] if isinstance(scheme, dict) else []
    groups = parts[0].get("config_groups") if parts else None
    parts += groups.values() if isinstance(groups, dict) else []
    formats = {
        str(part["format"]) for part in parts if isinstance(part, dict) and "format" in part
    }
    problem = f"not supported: {QUANTISATION} with formats {sorted(formats)}"
    fine = formats == {MXFP4_FORMAT}
    problems = [] if fine else [f"{problem}, only {MXFP4_FORMAT}"]
    checkpoint.fail_if(problems, checkpoint.CONFIG)
