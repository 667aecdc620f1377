"""What a layer remembers while a model generates."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from llmcourse.ops.common import require, require_count, require_tensor


class Memory(Protocol):
    """What every kind of memory offers to whoever generates."""

    @property
    def length(self) -> int:
        """Tokens read so far."""

    @property
    def bytes(self) -> int:
        """Bytes held."""

    def reorder(self, index: Tensor) -> None:
        """Keep the sequences `index` ([B'] int64), in that order."""

    def copy(self) -> Any:
        """An independent memory with the same content."""


class KVCache:
    """The keys and values of every token so far, for one layer: exact, and growing.

    batch: B sequences, all of one length.
    num_heads: Hk, the heads of the keys and values.
    key_width, value_width: K and V, channels a head.
    capacity: the most tokens it may hold; space for them is taken as they come.
    dtype, device: how and where they are kept.

    It is made for generation, under `torch.no_grad()`. PyTorch refuses a backward pass through
    what an `append` returned once later tokens were written beside it.
    """

    def __init__(
        self,
        batch: int,
        num_heads: int,
        key_width: int,
        value_width: int,
        *,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = {"batch": batch, "num_heads": num_heads, "capacity": capacity}
        sizes |= {"key_width": key_width, "value_width": value_width}
        for name, size in sizes.items():
            require_count(name, size)
        self.capacity = capacity
        self.length = 0
        # A head's tokens lie side by side, [B, Hk, room, K]: reading them all copies nothing.
        self._k = torch.empty(batch, num_heads, 0, key_width, dtype=dtype, device=device)
        self._v = torch.empty(batch, num_heads, 0, value_width, dtype=dtype, device=device)

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values held: those of `length` tokens, not of `capacity`."""
        return sum(
            x[:, :, : self.length].numel() * x.element_size() for x in (self._k, self._v)
        )

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add T tokens, and return all that are held.

        k: [B, T, Hk, K]; v: [B, T, Hk, V].
        Returns k [B, length, Hk, K] and v [B, length, Hk, V], views in the cache's dtype.
        Raises ValueError, changing nothing, for a wrong shape or beyond the capacity.
        """
        self._check("k", k, self._k)
        self._check("v", v, self._v)
        require(k.shape[1] == v.shape[1], "v", f"{v.shape[1]} tokens", f"k's {k.shape[1]}")
        end = self.length + k.shape[1]
        needs = f"at most its capacity of {self.capacity}"
        require(end <= self.capacity, "cache", f"{self.length} + {k.shape[1]} tokens", needs)
        self._make_room(end)
        self._k[:, :, self.length : end] = k.transpose(1, 2)
        self._v[:, :, self.length : end] = v.transpose(1, 2)
        self.length = end
        return self._k[:, :, :end].transpose(1, 2), self._v[:, :, :end].transpose(1, 2)

    def reorder(self, index: Tensor) -> None:
        """Keep the sequences `index` ([B'] int64), in that order: beams that split and end."""
        self._k, self._v = (x.index_select(0, index) for x in (self._k, self._v))

    def copy(self) -> "KVCache":
        """An independent cache with the same content, to continue in two ways."""
        batch, num_heads, _, key_width = self._k.shape
        twin = KVCache(
            batch,
            num_heads,
            key_width,
            self._v.shape[-1],
            capacity=self.capacity,
            dtype=self._k.dtype,
            device=self._k.device,
        )
        twin.length = self.length
        twin._k, twin._v = (x[:, :, : self.length].clone() for x in (self._k, self._v))
        return twin

    def _make_room(self, tokens: int) -> None:
        """Double the space when it is full: each token is then moved O(1) times on average."""
        room = self._k.shape[2]
        if tokens > room:
            more = min(max(tokens, 2 * room), self.capacity)
            self._k, self._v = (self._grown(x, more) for x in (self._k, self._v))

    def _grown(self, x: Tensor, room: int) -> Tensor:
        grown = x.new_empty(*x.shape[:2], room, x.shape[3])
        grown[:, :, : self.length] = x[:, :, : self.length]
        return grown

    def _check(self, name: str, x: Tensor, held: Tensor) -> None:
        B, H, _, width = held.shape
        require_tensor(name, x)
        fits = x.dim() == 4 and (x.shape[0], *x.shape[2:]) == (B, H, width)
        require(fits, name, list(x.shape), f"[B, T, H, width] = [{B}, T, {H}, {width}]")


class RecurrentState:
    """A state of one size, however long the text: what a recurrent layer keeps of all tokens.

    batch: B sequences, all of one length.
    sizes: axes of one sequence's state: H, K, V for the page of a memory rule, or W - 1, D for
        the last tokens that a short convolution still sees.
    dtype, device: how and where it is kept; float32 unless the layer computes in float64.

    `state` [B, *sizes] begins as zeros, and `length` counts the tokens that went into it.
    """

    def __init__(
        self,
        batch: int,
        *sizes: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        require_count("batch", batch)
        for size in sizes:
            require_count("sizes", size, least=0)  # a convolution over one token sees no past
        self.state = torch.zeros(batch, *sizes, dtype=dtype, device=device)
        self.length = 0

    @property
    def bytes(self) -> int:
        """Bytes of the state: the same before the first token and after the last."""
        return self.state.numel() * self.state.element_size()

    def update(self, state: Tensor, tokens: int) -> None:
        """Replace the state by the one `tokens` tokens later, [B, *sizes].

        Raises ValueError, changing nothing, for another shape.
        """
        require_tensor("state", state)
        require_count("tokens", tokens)
        held = list(self.state.shape)
        require(list(state.shape) == held, "state", list(state.shape), str(held))
        self.state = state.to(self.state.dtype)
        self.length += tokens

    def reorder(self, index: Tensor) -> None:
        """Keep the sequences `index` ([B'] int64), in that order: beams that split and end."""
        self.state = self.state.index_select(0, index)

    def copy(self) -> "RecurrentState":
        """An independent state with the same content, to continue in two ways."""
        twin = RecurrentState(*self.state.shape, dtype=self.state.dtype)
        twin.state, twin.length = self.state.clone(), self.length
        return twin


class Cache:
    """What a whole model remembers: one memory a layer.

    layers: one memory a layer, in order: a `KVCache`, a `RecurrentState`, or a `Cache` of the
        memories of its parts.
    made_for: the configuration of the model, where the model asks for it.
    """

    def __init__(self, layers: Sequence[Memory], *, made_for: object = None) -> None:
        require(len(layers) > 0, "layers", "none", "at least one")
        self.layers: list[Any] = list(layers)
        self.made_for = made_for

    def __getitem__(self, layer: int) -> Any:
        return self.layers[layer]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self.layers[0].length

    @property
    def bytes(self) -> int:
        """Bytes held, over all layers."""
        return sum(layer.bytes for layer in self.layers)

    def reorder(self, index: Tensor) -> None:
        """Keep the sequences `index` ([B'] int64), in that order, in every layer."""
        for layer in self.layers:
            layer.reorder(index)

    def copy(self) -> "Cache":
        """An independent cache with the same content, to continue in two ways."""
        return Cache([layer.copy() for layer in self.layers], made_for=self.made_for)
