"""Multi-head latent attention: one short vector a token, from which all heads read."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from llmcourse.cache import LatentCache
from llmcourse.layers.norm import RMSNorm
from llmcourse.ops import softmax
from llmcourse.ops.common import (
    compute_dtype,
    require,
    require_count,
    require_number,
    without_autocast,
)

# Our names of the parts, and those in the public checkpoints of DeepSeek and Kimi.
PUBLIC_NAMES = {
    "query": "q_proj",
    "query_down": "q_a_proj",
    "query_norm": "q_a_layernorm",
    "query_up": "q_b_proj",
    "latent_down": "kv_a_proj_with_mqa",
    "latent_norm": "kv_a_layernorm",
    "latent_up": "kv_b_proj",
    "gate": "g_proj",
    "out": "o_proj",
}


class MultiHeadLatentAttention(nn.Module):
    """Causal softmax attention whose keys and values are rebuilt from a latent vector c.

    DeepSeek-V2 (arXiv:2405.04434), equations 9 to 19. Token i leaves c_i = norm(W_down x_i) and
    shared key channels s_i = W_s x_i. A head's key for it is [W_uk c_i, s_i], the value
    W_uv c_i. As q . (W_uk c) = (W_uk^T q) . c, the heads may as well read the latents
    themselves: the absorbed form, equal but for rounding.

    width: D, the number of channels.
    num_heads: H.
    kv_rank: R, channels of the latent.
    key_width: K, key channels of a head that come from the latent.
    shared_key_width: S, key channels that all heads share; may be 0.
    value_width: V, value channels of a head.
    query_rank: channels of the queries' own latent; None: queries straight from x.
    rotary: theta of the rotary embedding (RoPE) on the S shared channels and their part of the
        queries, as in DeepSeek; None: no positions (NoPE), as in Kimi.
    output_gate: multiply what is read by sigmoid(W_g x) before `out`, as in Kimi K3.
    norm_eps: eps of the norms of the latents.

    forward: x [B, T, D] -> [B, T, D]. With a `memory` (from `new_memory`), the T tokens follow
        those that it holds, and are added to it.
        absorbed: which form computes; None: the one with fewer multiplications, which is the
        absorbed one for a few tokens after many.
    Raises ValueError for sizes or a memory that do not fit.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        kv_rank: int,
        key_width: int,
        shared_key_width: int,
        value_width: int,
        query_rank: int | None = None,
        rotary: float | None = None,
        output_gate: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        _check_sizes(width=width, num_heads=num_heads, kv_rank=kv_rank)
        _check_sizes(key_width=key_width, value_width=value_width)
        require_count("shared_key_width", shared_key_width, least=0)
        require_number("norm_eps", norm_eps, lambda x: 0 < x < 1, "more than 0, below 1")
        _check_rotary(rotary, shared_key_width)
        self.num_heads, self.rank, self.rotary = num_heads, kv_rank, rotary
        self.widths = [key_width, shared_key_width, value_width]
        self._make_queries(width, query_rank, norm_eps)
        self.latent_down = nn.Linear(width, kv_rank + shared_key_width, bias=False)
        self.latent_norm = RMSNorm(kv_rank, norm_eps)
        self.latent_up = nn.Linear(kv_rank, num_heads * (key_width + value_width), bias=False)
        read_width = num_heads * value_width
        self.gate = nn.Linear(width, read_width, bias=False) if output_gate else None
        self.out = nn.Linear(read_width, width, bias=False)

    def _make_queries(self, width: int, rank: int | None, norm_eps: float) -> None:
        self.query_rank = rank
        K, S, _ = self.widths
        if rank is None:
            self.query = nn.Linear(width, self.num_heads * (K + S), bias=False)
        else:
            _check_sizes(query_rank=rank)
            self.query_down = nn.Linear(width, rank, bias=False)
            self.query_norm = RMSNorm(rank, norm_eps)
            self.query_up = nn.Linear(rank, self.num_heads * (K + S), bias=False)

    def forward(
        self, x: Tensor, memory: LatentCache | None = None, *, absorbed: bool | None = None
    ) -> Tensor:
        start = 0 if memory is None else _checked(memory).length
        q = self.queries(x, start)
        latents, shared = self.compress(x, start)
        if memory is None:
            page = torch.cat([latents, shared], dim=-1)  # [B, Tk, R + S], here Tk = T
        else:
            page = memory.append(latents, shared).to(q.dtype)
        if absorbed is None:
            absorbed = self.absorbed_is_cheaper(q.shape[1], page.shape[1])
        o = self.read_absorbed(q, page) if absorbed else self.read_explicit(q, page)
        o = o.flatten(2)  # [B, T, H V]
        if self.gate is not None:
            o = o * torch.sigmoid(self.gate(x))
        return self.out(o)

    def queries(self, x: Tensor, start: int) -> Tensor:
        """q [B, T, H, K + S] of x [B, T, D], whose first token is the one numbered `start`."""
        if self.query_rank is None:
            q = self.query(x)
        else:
            q = self.query_up(self.query_norm(self.query_down(x)))
        q = q.unflatten(-1, (self.num_heads, -1))
        if self.rotary is None:
            return q
        K, S, _ = self.widths
        own, shared = q.split([K, S], dim=-1)
        return torch.cat([own, rotate(shared, start, self.rotary)], dim=-1)

    def compress(self, x: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """What is remembered of x [B, T, D]: latents [B, T, R] and shared keys [B, T, S]."""
        latents, shared = self.latent_down(x).split([self.rank, self.widths[1]], dim=-1)
        if self.rotary is not None:
            shared = rotate(shared.unsqueeze(2), start, self.rotary).squeeze(2)
        return self.latent_norm(latents), shared

    def read_explicit(self, q: Tensor, page: Tensor) -> Tensor:
        """What the queries read when every head's keys and values are rebuilt.

        q: [B, Tq, H, K + S], of the last tokens of the page [B, Tk, R + S].
        Returns [B, Tq, H, V].
        """
        K, S, V = self.widths
        latents, shared = page.split([self.rank, S], dim=-1)
        rebuilt = self.latent_up(latents).unflatten(-1, (self.num_heads, -1))
        k, v = rebuilt.split([K, V], dim=-1)  # [B, Tk, H, K] and [B, Tk, H, V]
        shared = shared.unsqueeze(2).expand(-1, -1, self.num_heads, -1)
        return softmax.parallel(q, torch.cat([k, shared], dim=-1), v)

    def read_absorbed(self, q: Tensor, page: Tensor) -> Tensor:
        """The same from the latents: W_uk goes into the queries, W_uv into what is read.

        The page is the one key head of all queries, and its latents are the values.
        """
        K, S, V = self.widths
        W_uk, W_uv = self.latent_up.weight.unflatten(0, (self.num_heads, -1)).split([K, V], 1)
        own, shared = q.split([K, S], dim=-1)
        q = torch.cat([torch.einsum("bthk,hkr->bthr", own, W_uk), shared], dim=-1)
        scale = (K + S) ** -0.5
        if q.shape[1] == 1:
            o = read_once(scale * q, page, self.rank)
        else:
            keys = page.unsqueeze(2)  # [B, Tk, 1, R + S]
            o = softmax.parallel(q, keys, keys[..., : self.rank], scale=scale)
        return torch.einsum("bthr,hvr->bthv", o, W_uv)

    def absorbed_is_cheaper(self, num_queries: int, num_keys: int) -> bool:
        """Whether the absorbed form multiplies less, for Tq queries that read Tk tokens.

        A head's products, but for those with the shared channels, which both forms have:
        explicit, Tk R (K + V) to rebuild and Tq Tk (K + V) to attend; absorbed, Tq R (K + V) to
        fold the weights in and 2 Tq Tk R to attend.
        """
        K, _, V = self.widths
        explicit = (num_keys * self.rank + num_queries * num_keys) * (K + V)
        absorbed = num_queries * self.rank * (K + V) + 2 * num_queries * num_keys * self.rank
        return absorbed < explicit

    def new_memory(self, batch: int = 1) -> LatentCache:
        """The empty cache of `batch` sequences: R + S numbers for every token to come."""
        weight = self.latent_down.weight
        S = self.widths[1]
        return LatentCache(batch, self.rank, S, dtype=weight.dtype, device=weight.device)


def read_once(q: Tensor, page: Tensor, rank: int) -> Tensor:
    """What the heads of one token read from a page of latents: attention without a mask.

    The same as `softmax.parallel` where the last token is the only query, and faster after a
    long context: with the page as the first factor it is read in the order in which it lies.
    q: [B, 1, H, R + S], scaled; page: [B, Tk, R + S]; rank: R. Returns [B, 1, H, R].
    """
    dtype = compute_dtype(q)
    with without_autocast(q):
        page = page.to(dtype)
        scores = (page @ q.squeeze(1).to(dtype).mT).mT  # [B, H, Tk]
        o = scores.softmax(dim=-1) @ page[..., :rank]
    return o.unsqueeze(1).to(q.dtype)


def rotate(x: Tensor, start: int, theta: float) -> Tensor:
    """Rotary embedding: turn channels 2i, 2i + 1 of token t by the angle t theta**(-2i / S).

    Su et al. 2021 (arXiv:2104.09864), equation 15. Neighbouring channels are a pair, as in
    DeepSeek's checkpoints and `transformers`' `rope_interleave`; models of the Llama family
    pair channel i with i + S / 2 instead, and need their weights' rows reordered.
    x: [B, T, H, S], S even; start: t of its first token; theta: 10,000 in the paper.
    Returns the same shape and dtype. Scores depend on the distance of two tokens only.
    """
    T, S = x.shape[1], x.shape[-1]
    numbers = partial(torch.arange, dtype=torch.float64, device="cpu")  # not all have float64
    t = numbers(start, start + T)
    speed = theta ** -(numbers(0, S, 2) / S)
    angle = torch.outer(t, speed)[:, None]  # [T, 1, S / 2]; float32 would blur late positions
    dtype = compute_dtype(x)
    cos, sin = (y.to(x.device, dtype) for y in (angle.cos(), angle.sin()))
    a, b = x.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return turned.flatten(-2).to(x.dtype)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        require_count(name, size)


def _check_rotary(theta: float | None, shared_key_width: int) -> None:
    if theta is not None:
        require_number("rotary", theta, lambda x: 1 < x < math.inf, "a theta above 1, or None")
        pairs = shared_key_width > 0 and shared_key_width % 2 == 0
        needs = "an even number of channels to rotate"
        require(pairs, "shared_key_width", shared_key_width, needs)


def _checked(memory: LatentCache) -> LatentCache:
    fits = isinstance(memory, LatentCache)
    require(fits, "memory", type(memory).__name__, "a LatentCache")
    return memory
