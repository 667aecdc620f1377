"""One trunk, any memory: the same model but for the layer that remembers, to compare them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.cache import ANY_LENGTH, Cache, KVCache
from llmcourse.layers.attention import MultiHeadAttention
from llmcourse.layers.conv import ShortConvolution
from llmcourse.layers.delta_net import DeltaNet
from llmcourse.layers.gated_delta_net import GatedDeltaNet
from llmcourse.layers.kda import KimiDeltaAttention
from llmcourse.layers.linear_attention import LinearAttention
from llmcourse.layers.mlp import MLP
from llmcourse.layers.norm import RMSNorm
from llmcourse.models.common import require_eps, require_ids, require_own_cache, require_size
from llmcourse.ops.common import require


class SoftmaxAttention(MultiHeadAttention):
    """Softmax attention that makes its own memory, as the other layers do."""

    def new_memory(self, batch: int = 1) -> KVCache:
        """The empty cache of `batch` sequences: keys and values of every token to come."""
        H, weight = self.num_heads, self.qkv.weight
        K = self.qkv.in_features // H
        dtype, device = weight.dtype, weight.device
        return KVCache(batch, H, K, K, capacity=ANY_LENGTH, dtype=dtype, device=device)


def kimi_delta_attention(width: int, num_heads: int) -> KimiDeltaAttention:
    """Kimi Linear's layer, low-rank gates of one head's width, without convolutions of its own:
    the one that the trunk gives every kind takes their place."""
    K = width // num_heads
    return KimiDeltaAttention(
        width, num_heads, K, gate_rank=K, output_gate_rank=K, conv_size=None
    )


# Each kind of memory and its layer, made as `layer(width, num_heads)`. A layer is called as
# `layer(x [B, T, D], memory)`, and `layer.new_memory(batch)` makes the memory.
MEMORIES: dict[str, Callable[[int, int], Any]] = {
    "softmax": SoftmaxAttention,
    "linear": LinearAttention,
    "delta": DeltaNet,
    "gated": GatedDeltaNet,
    "kda": kimi_delta_attention,
}


@dataclass(frozen=True)
class OneMemoryConfig:
    """What two models that are compared share, and the kind of memory in which they differ.

    memory: a key of `MEMORIES`.
    vocab_size: how many tokens it knows.
    width: D, channels of a token's vector.
    num_layers: blocks.
    num_heads: heads of the memory, a divisor of width.
    conv_size: W, the tokens that the short convolution before each memory sees.
    mlp_ratio: channels in the middle of an MLP, in widths.
    norm_eps: added to the mean square in every RMSNorm of the trunk.
    Raises ValueError for a value that no such model can have.
    """

    memory: str
    vocab_size: int
    width: int = 64
    num_layers: int = 2
    num_heads: int = 2
    conv_size: int = 4
    mlp_ratio: int = 4
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        known = isinstance(self.memory, str) and self.memory in MEMORIES
        require(known, "memory", repr(self.memory), f"one of {[*MEMORIES]}")
        for name in ("vocab_size", "width", "num_layers", "num_heads", "conv_size"):
            require_size(name, getattr(self, name))
        require_size("mlp_ratio", self.mlp_ratio)
        fits = self.width % self.num_heads == 0
        require(fits, "num_heads", self.num_heads, f"a divisor of width = {self.width}")
        require_eps(self.norm_eps)

    @property
    def context_length(self) -> int:
        """The longest text: there are no position vectors, so nothing sets a limit."""
        return ANY_LENGTH


class Block(nn.Module):
    """One layer: a glance at the neighbours, a look into memory, then each token alone.

    forward: x [B, T, D] -> [B, T, D]; `memory`: what `new_memory` made, or None.
    """

    def __init__(self, config: OneMemoryConfig) -> None:
        super().__init__()
        D = config.width
        self.norm_1 = RMSNorm(D, config.norm_eps)
        self.conv = ShortConvolution(D, config.conv_size)
        self.mixer = MEMORIES[config.memory](D, config.num_heads)
        self.norm_2 = RMSNorm(D, config.norm_eps)
        self.mlp = MLP(D, config.mlp_ratio * D)

    def forward(self, x: Tensor, memory: Cache | None = None) -> Tensor:
        neighbours, past = (None, None) if memory is None else memory
        x = x + self.mixer(self.conv(self.norm_1(x), neighbours), past)
        return x + self.mlp(self.norm_2(x))

    def new_memory(self, batch: int = 1) -> Cache:
        """The memories of its two parts that look back, in their order."""
        return Cache([self.conv.new_memory(batch), self.mixer.new_memory(batch)])


class OneMemory(nn.Module):
    """A language model with one kind of memory and fresh weights (PyTorch's global generator).

    forward: ids [B, T] int64 -> logits [B, T, vocab_size]; row t scores the token after t.
        With a `cache`, the T tokens continue the ones it holds, and are added to it.
    Raises ValueError, changing nothing, for ids outside the vocabulary and for a cache that no
    model of this configuration made.
    """

    def __init__(self, config: OneMemoryConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.final_norm = RMSNorm(config.width, config.norm_eps)
        self.initialise()

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        require_ids(ids, self.config.vocab_size)
        require_own_cache(cache, self.config)
        x = self.token_embedding(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[i])
        # The head is tied: a token scores high where its own embedding points.
        return F.linear(self.final_norm(x), self.token_embedding.weight)

    def initialise(self) -> None:
        """Matrices that keep the size of their input; norms, convolutions as they are made."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.token_embedding.weight, std=0.02)  # logits begin near zero

    def new_cache(self, batch: int = 1) -> Cache:
        """An empty memory for `batch` sequences of any length."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        return Cache([block.new_memory(batch) for block in blocks], made_for=self.config)
