"""What a layer remembers while a model generates."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from llmcourse.ops.common import require, require_count, require_tensor

ANY_LENGTH = 1 << 30  # the capacity of what has no limit of its own


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


class TokenCache:
    """Tensors with a row for every token so far, for one layer: exact, and growing.

    What `KVCache` and `LatentCache` share. The tokens are the last axis but one of each tensor.
    empty: the tensors before the first token, [B, ..., 0, width] each.
    capacity: the most tokens it may hold; space for them is taken as they come.

    It is made for generation, under `torch.no_grad()`. PyTorch refuses a backward pass through
    what an `append` returned once later tokens were written beside it. A cache made or written
    in `torch.inference_mode()` goes on there alone.
    """

    def __init__(self, *empty: Tensor, capacity: int) -> None:
        require_count("capacity", capacity)
        self.capacity = capacity
        self.length = 0
        self._held = list(empty)

    @property
    def bytes(self) -> int:
        """Bytes of what is held: the rows of `length` tokens, not of `capacity`."""
        return sum(x.numel() * x.element_size() for x in self._filled())

    def reorder(self, index: Tensor) -> None:
        """Keep the sequences `index` ([B'] int64), in that order: beams that split and end."""
        self._held = [x.index_select(0, index) for x in self._held]

    def copy(self) -> Self:
        """An independent cache with the same content, to continue in two ways."""
        twin = copy.copy(self)
        twin._held = [x.clone() for x in self._filled()]
        return twin

    def _filled(self) -> list[Tensor]:
        return [x[..., : self.length, :] for x in self._held]

    def _next_rows(self, tokens: int) -> slice:
        """Where to write `tokens` more tokens; from now on they count in `length`."""
        start, end = self.length, self.length + tokens
        needs = f"at most its capacity of {self.capacity}"
        require(end <= self.capacity, "cache", f"{start} + {tokens} tokens", needs)
        self._make_room(end)
        self.length = end
        return slice(start, end)

    def _make_room(self, tokens: int) -> None:
        """Double the space when it is full: each token is then moved O(1) times on average."""
        room = self._held[0].shape[-2]
        if tokens > room:
            more = min(max(tokens, 2 * room), self.capacity)
            self._held = [self._grown(x, more) for x in self._held]

    def _grown(self, x: Tensor, room: int) -> Tensor:
        grown = x.new_empty(*x.shape[:-2], room, x.shape[-1])
        grown[..., : self.length, :] = x[..., : self.length, :]
        return grown


class KVCache(TokenCache):
    """The keys and values of every token so far, for one layer.

    batch: B sequences, all of one length.
    num_heads: Hk, the heads of the keys and values.
    key_width, value_width: K and V, channels a head.
    capacity: the most tokens it may hold, without limit by default.
    dtype, device: how and where they are kept.
    For its limits in training see `TokenCache`.
    """

    def __init__(
        self,
        batch: int,
        num_heads: int,
        key_width: int,
        value_width: int,
        *,
        capacity: int = ANY_LENGTH,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = {"batch": batch, "num_heads": num_heads}
        sizes |= {"key_width": key_width, "value_width": value_width}
        for name, size in sizes.items():
            require_count(name, size)
        # A head's tokens lie side by side, [B, Hk, room, K]: reading them all copies nothing.
        k = torch.empty(batch, num_heads, 0, key_width, dtype=dtype, device=device)
        v = torch.empty(batch, num_heads, 0, value_width, dtype=dtype, device=device)
        super().__init__(k, v, capacity=capacity)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add T tokens, and return all that are held.

        k: [B, T, Hk, K]; v: [B, T, Hk, V].
        Returns k [B, length, Hk, K] and v [B, length, Hk, V], views in the cache's dtype.
        Raises ValueError, changing nothing, for a wrong shape or beyond the capacity.
        """
        self._check("k", k, self._held[0])
        self._check("v", v, self._held[1])
        require(k.shape[1] == v.shape[1], "v", f"{v.shape[1]} tokens", f"k's {k.shape[1]}")
        rows = self._next_rows(k.shape[1])
        held_k, held_v = self._held
        held_k[:, :, rows] = k.transpose(1, 2)
        held_v[:, :, rows] = v.transpose(1, 2)
        all_k, all_v = self._filled()
        return all_k.transpose(1, 2), all_v.transpose(1, 2)

    def _check(self, name: str, x: Tensor, held: Tensor) -> None:
        B, H, _, width = held.shape
        _require_tokens(name, x, "[B, T, H, width]", B, H, width)


class LatentCache(TokenCache):
    """The latent vector and the shared key channels of every token so far, for one layer.

    They lie side by side, as latent attention reads them: R + S numbers a token for all heads.
    batch: B sequences, all of one length.
    rank: R, channels of a latent.
    shared_width: S, key channels that all heads share; may be 0.
    capacity: the most tokens it may hold, without limit by default.
    dtype, device: how and where they are kept.
    For its limits in training see `TokenCache`.
    """

    def __init__(
        self,
        batch: int,
        rank: int,
        shared_width: int,
        *,
        capacity: int = ANY_LENGTH,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        require_count("batch", batch)
        require_count("rank", rank)
        require_count("shared_width", shared_width, least=0)
        self.rank, self.shared_width = rank, shared_width
        empty = torch.empty(batch, 0, rank + shared_width, dtype=dtype, device=device)
        super().__init__(empty, capacity=capacity)

    def append(self, latents: Tensor, shared: Tensor) -> Tensor:
        """Add T tokens, and return all that are held.

        latents: [B, T, R]; shared: [B, T, S].
        Returns [B, length, R + S], the latents first, a view in the cache's dtype.
        Raises ValueError, changing nothing, for a wrong shape or beyond the capacity.
        """
        (held,) = self._held
        _require_tokens("latents", latents, "[B, T, R]", held.shape[0], self.rank)
        _require_tokens("shared", shared, "[B, T, S]", held.shape[0], self.shared_width)
        T = latents.shape[1]
        require(shared.shape[1] == T, "shared", f"{shared.shape[1]} tokens", f"latents' {T}")
        rows = self._next_rows(T)
        self._held[0][:, rows] = torch.cat([latents, shared], dim=-1)
        return self._filled()[0]


def _require_tokens(name: str, x: Tensor, axes: str, batch: int, *sizes: int) -> None:
    """Refuse anything but [B, T, *sizes] of B = batch sequences; `axes` is its name."""
    require_tensor(name, x)
    fits = x.dim() == 2 + len(sizes) and (x.shape[0], *x.shape[2:]) == (batch, *sizes)
    needs = ", ".join(str(size) for size in (batch, "T", *sizes))
    require(fits, name, list(x.shape), f"{axes} = [{needs}]")


class RecurrentState:
    """A state of one size, however long the text: what a recurrent layer keeps of all tokens.

    batch: B sequences, all of one length.
    sizes: axes of one sequence's state: H, K, V for the page of a memory rule, or W - 1, D for
        the last tokens that a short convolution still sees.
    dtype, device: how and where it is kept; float32 unless the layer computes in float64.

    `state` [B, *sizes] begins as zeros, and `length` counts the tokens that went into it.
    Generate under `torch.no_grad()`: otherwise the graph of all tokens is kept for a backward
    pass, which `bytes` does not count. A state made in `torch.inference_mode()` is of use there
    alone.
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
        twin = copy.copy(self)
        twin.state = self.state.clone()
        return twin


class Cache:
    """What a whole model remembers: one memory a layer.

    layers: one memory a layer, in order: a `KVCache`, a `LatentCache`, a `RecurrentState`,
        or a `Cache` of the memories of its parts.
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
