"""GPT-2 (Radford et al. 2019): embeddings, blocks of attention and MLP, a tied head."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.cache import Cache, KVCache
from llmcourse.layers.attention import MultiHeadAttention
from llmcourse.layers.mlp import MLP
from llmcourse.layers.norm import LayerNorm
from llmcourse.models import checkpoint, tensor_files
from llmcourse.models.common import require_eps, require_ids, require_size
from llmcourse.models.dry_run import Report, report
from llmcourse.ops import softmax
from llmcourse.ops.common import require


@dataclass(frozen=True)
class GPT2Config:
    """The numbers that make one GPT-2 different from another.

    vocab_size: how many tokens it knows.
    context_length: the most positions; each has a learned vector, so there are no others.
    width: D, channels of a token's vector.
    num_layers: blocks.
    num_heads: attention heads in a block, a divisor of width.
    norm_eps: added to the variance in every LayerNorm.
    Raises ValueError for a value that no GPT-2 can have.
    """

    vocab_size: int
    context_length: int
    width: int
    num_layers: int
    num_heads: int
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "width", "num_layers", "num_heads"):
            require_size(name, getattr(self, name))
        fits = self.width % self.num_heads == 0
        require(fits, "num_heads", self.num_heads, f"a divisor of width = {self.width}")
        require_eps(self.norm_eps)

    @property
    def mlp_width(self) -> int:
        """Channels in the middle of an MLP."""
        return 4 * self.width

    @classmethod
    def tiny(cls) -> "GPT2Config":
        """Small enough to train on a laptop in seconds."""
        return cls(vocab_size=1024, context_length=256, width=128, num_layers=4, num_heads=4)

    @classmethod
    def gpt2(cls) -> "GPT2Config":
        """The smallest of the release of 2019, "124M"."""
        return cls(
            vocab_size=50257, context_length=1024, width=768, num_layers=12, num_heads=12
        )

    @classmethod
    def gpt2_medium(cls) -> "GPT2Config":
        """The second of the release, "355M"."""
        return cls(
            vocab_size=50257, context_length=1024, width=1024, num_layers=24, num_heads=16
        )

    @classmethod
    def gpt2_large(cls) -> "GPT2Config":
        """The third of the release, "774M"."""
        return cls(
            vocab_size=50257, context_length=1024, width=1280, num_layers=36, num_heads=20
        )

    @classmethod
    def gpt2_xl(cls) -> "GPT2Config":
        """The largest of the release, "1.5 billion"."""
        return cls(
            vocab_size=50257, context_length=1024, width=1600, num_layers=48, num_heads=25
        )

    @classmethod
    def gpt3(cls) -> "GPT2Config":
        """The shape of GPT-3 (Brown et al. 2020), "175 billion": for counting, not for running.

        Every second layer of GPT-3 looks at a local band only, which needs no other weights.
        """
        return cls(
            vocab_size=50257, context_length=2048, width=12288, num_layers=96, num_heads=96
        )


class Block(nn.Module):
    """One layer: tokens read from one another, then each one thinks alone.

    Both parts read a normalised copy of x and add what they found to x itself.
    forward: x [B, T, D] -> [B, T, D]; `memory`: what `MultiHeadAttention` takes.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.norm_1 = LayerNorm(config.width, config.norm_eps)
        self.attention = MultiHeadAttention(config.width, config.num_heads)
        self.norm_2 = LayerNorm(config.width, config.norm_eps)
        self.mlp = MLP(config.width, config.mlp_width)

    def forward(self, x: Tensor, memory: KVCache | None = None) -> Tensor:
        x = x + self.attention(self.norm_1(x), memory)
        return x + self.mlp(self.norm_2(x))


class GPT2(nn.Module):
    """GPT-2 with the given shape and fresh weights (from PyTorch's global generator).

    forward: ids [B, T] int64 -> logits [B, T, vocab_size]; row t scores the token after t.
        With a `cache`, the T tokens continue the ones it holds, and are added to it.
    Raises ValueError for ids outside the vocabulary and positions outside the context.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context_length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = LayerNorm(config.width, config.norm_eps)
        self.initialise()

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        if cache is not None:
            held, layers = len(cache), len(self.blocks)
            require(held == layers, "cache", f"{held} layers", f"the model's {layers}")
        x = self.embed(ids, start=0 if cache is None else cache.length)
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[i])
        # The head is tied: a token scores high where its own embedding points.
        return F.linear(self.final_norm(x), self.token_embedding.weight)

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """What each token is plus where it stands: ids [B, T] -> [B, T, D]."""
        self._check(ids, start)
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        return self.token_embedding(ids) + self.position_embedding(positions)

    def initialise(self) -> None:
        """GPT-2's start: small normal weights, smaller where a block adds to its input."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" in name:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=self._start(name))

    def _start(self, name: str) -> float:
        if name.startswith("position"):
            return 0.01  # half of the others, as in the code that came with the weights
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            return 0.02 / math.sqrt(2 * self.config.num_layers)  # 2 L sums: keeps x's variance
        return 0.02

    def new_cache(self, batch: int = 1) -> Cache:
        """An empty memory for `batch` sequences of at most `context_length` tokens."""
        c, weight = self.config, self.token_embedding.weight
        head = c.width // c.num_heads

        def memory() -> KVCache:
            size = (batch, c.num_heads, head, head)
            dtype, device = weight.dtype, weight.device
            return KVCache(*size, capacity=c.context_length, dtype=dtype, device=device)

        return Cache([memory() for _ in range(c.num_layers)])

    @torch.no_grad()
    def attention_maps(self, ids: Tensor) -> list[Tensor]:
        """Who reads whom: for each layer the attention weights, [B, H, T, T]; rows sum to 1."""
        x, maps = self.embed(ids), []
        for block in self.blocks:
            assert isinstance(block, Block)
            q, k, _ = block.attention.project(block.norm_1(x))
            maps.append(softmax.weights(q, k))
            x = block(x)
        return maps

    def _check(self, ids: Tensor, start: int) -> None:
        require_ids(ids, self.config.vocab_size)
        end, limit = start + ids.shape[1], self.config.context_length
        require(end <= limit, "ids", f"{end} positions", f"at most the context of {limit}")

    @classmethod
    def from_pretrained(
        cls, path_or_repo_id: str | Path, *, dtype: torch.dtype | None = None
    ) -> "GPT2":
        """A model from a checkpoint in the layout of openai-community/gpt2.

        path_or_repo_id: a folder (no network is used), or a repository on the Hugging Face Hub.
        dtype: of the weights; by default as stored.
        Raises CheckpointError with everything that is missing, unexpected or misshapen.
        """
        folder = checkpoint.find(path_or_repo_id)
        config = config_from_public(checkpoint.read_json(folder / checkpoint.CONFIG))
        files = tensor_files.in_folder(folder)
        model, stored = _matched(config, files)

        def same(a: str, b: str) -> bool:
            return torch.equal(files.read(a), files.read(b))

        _check_head(files, stored, same)

        def read(name: str) -> Tensor:
            tensor = files.read(stored[_public_name(name)])
            return tensor.T if _is_transposed(name) else tensor

        checkpoint.fill(model, read, dtype)
        return model

    @classmethod
    def inspect_pretrained(cls, path_or_repo_id: str | Path) -> Report:
        """What `from_pretrained` would load, its sizes by part: `print` the report.

        Only config.json, the index and the headers of the files are read, or fetched.
        Raises CheckpointError as `from_pretrained`, but for a head whose numbers are not those
        of the embedding.
        """
        public, files = tensor_files.headers_of(path_or_repo_id)
        model, stored = _matched(config_from_public(public), files)
        published = {name: [_public_name(name)] for name in model.state_dict()}
        found = {name: files.tensors[stored[name]] for name in stored}
        return report(model, published, found, files, part_of=_part_of)

    def save_pretrained(self, folder: str | Path, *, max_shard_bytes: int = 5 * 10**9) -> None:
        """Write the folder that `from_pretrained` reads, in the published layout.

        max_shard_bytes: the most bytes of tensors in one file; beyond it they are sharded.
        Weights that are there already are replaced; whatever fails leaves them as they were.
        """
        tensors = {
            _public_name(name): parameter.T if _is_transposed(name) else parameter
            for name, parameter in self.named_parameters()
        }
        public = config_to_public(self.config)
        checkpoint.write(folder, public, tensors, max_shard_bytes=max_shard_bytes)


# The published names, part by part, for ours.
PUBLIC_NAMES = {
    "token_embedding": "wte",
    "position_embedding": "wpe",
    "blocks": "h",
    "norm_1": "ln_1",
    "attention": "attn",
    "qkv": "c_attn",
    "out": "c_proj",
    "norm_2": "ln_2",
    "up": "c_fc",
    "down": "c_proj",
    "final_norm": "ln_f",
}
PUBLIC_CONFIG = {
    "vocab_size": "vocab_size",
    "n_positions": "context_length",
    "n_embd": "width",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "layer_norm_epsilon": "norm_eps",
}
# Settings of other variants, with the values under which they are GPT-2.
FIXED: dict[str, list[Any]] = {
    "model_type": ["gpt2"],
    "activation_function": ["gelu_new", "gelu_pytorch_tanh"],
    "scale_attn_weights": [True],
    "scale_attn_by_inverse_layer_idx": [False],
    "reorder_and_upcast_attn": [False],
    "add_cross_attention": [False],
    "tie_word_embeddings": [True],
}
# Keys that published files carry and that do not change what the network computes.
BOOKKEEPING = [
    "_name_or_path",
    "architectures",
    "attn_pdrop",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "n_special",
    "output_past",
    "pad_token_id",
    "predict_special_tokens",
    "resid_pdrop",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "use_cache",
]


def config_from_public(public: dict[str, Any]) -> GPT2Config:
    """The configuration in a published config.json. Raises CheckpointError for other models."""
    same_as = {"n_ctx": [public.get("n_positions")]}
    width = public.get("n_embd")
    mlp = {"n_inner": [None, 4 * width] if type(width) is int else [None]}
    fixed = FIXED | same_as | mlp
    checkpoint.check_config(public, read=PUBLIC_CONFIG, fixed=fixed, bookkeeping=BOOKKEEPING)
    try:
        return GPT2Config(**{ours: public[key] for key, ours in PUBLIC_CONFIG.items()})
    except ValueError as error:
        raise checkpoint.CheckpointError(f"{checkpoint.CONFIG}: {error}") from error


def config_to_public(config: GPT2Config) -> dict[str, Any]:
    """The published config.json for a configuration."""
    numbers = {key: getattr(config, ours) for key, ours in PUBLIC_CONFIG.items()}
    fixed = {key: values[0] for key, values in FIXED.items()}
    return numbers | fixed | {"architectures": ["GPT2LMHeadModel"], "n_inner": None}


def _public_name(name: str) -> str:
    return ".".join(PUBLIC_NAMES.get(part, part) for part in name.split("."))


def _is_transposed(name: str) -> bool:
    """Linear maps are published as [in, out]; ours are [out, in], as PyTorch's."""
    return name.endswith(("qkv.weight", "out.weight", "up.weight", "down.weight"))


def _public_shape(name: str, parameter: Tensor) -> checkpoint.Shape:
    shape = tuple(parameter.shape)
    return shape[::-1] if _is_transposed(name) else shape


def _matched(
    config: GPT2Config, files: tensor_files.TensorFiles
) -> tuple[GPT2, Mapping[str, str]]:
    """A model on the meta device, and published name -> name in the files, which fit it."""
    count = config.num_layers
    model = checkpoint.on_meta(partial(GPT2, config), files.tensors, num_layers=count)
    stored = _stored_names(files, config)
    needed = {_public_name(n): _public_shape(n, p) for n, p in model.named_parameters()}
    found = {name: files.tensors[stored[name]] for name in stored}
    checkpoint.compare(needed, found, files.where)
    _check_head(files, stored, lambda a, b: files.tensors[a] == files.tensors[b])
    return model, stored


def _stored_names(files: tensor_files.TensorFiles, config: GPT2Config) -> dict[str, str]:
    """Published name -> name in the files, without what is no weight of its own.

    Some files put `transformer.` before every name, hold the causal masks as buffers, and the
    tied head a second time.
    """
    names = files.tensors.keys()
    stored = {name.removeprefix("transformer."): name for name in names}
    twice = [f"twice: {n}" for n in stored if {n, f"transformer.{n}"} <= names]
    checkpoint.fail_if(twice, files.where)
    for i in range(config.num_layers):
        for buffer in ("bias", "masked_bias"):
            stored.pop(f"h.{i}.attn.{buffer}", None)
    stored.pop("lm_head.weight", None)
    return stored


def _check_head(
    files: tensor_files.TensorFiles,
    stored: Mapping[str, str],
    same: Callable[[str, str], bool],
) -> None:
    """Refuse a head that is not the `same` as the embedding: it would be left out silently."""
    heads = {"lm_head.weight", "transformer.lm_head.weight"} & files.tensors.keys()
    differ = [head for head in heads if not same(head, stored["wte.weight"])]
    why = "differs from wte.weight, but GPT-2's head is tied to it"
    checkpoint.fail_if([f"unexpected: {head} {why}" for head in differ], files.where)


def _part_of(name: str) -> str:
    """The part, as `accounting` names it, to which a parameter of ours belongs."""
    words = {"norm": "LayerNorm", "attention": "attention", "mlp": "MLP"}
    for word, part in words.items():
        if word in name:
            return part
    return name.removesuffix(".weight").replace("_", " ")  # the two embeddings
