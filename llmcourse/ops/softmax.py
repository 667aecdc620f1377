"""Softmax attention: the memory that keeps every key and value, and rereads them all.

The names: B sequences, T tokens, H heads, K channels in a query or key, V channels in a value.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from llmcourse.ops.common import (
    compute_dtype,
    refuse_second_gradient,
    require,
    require_count,
    require_floats,
    require_scale,
    without_autocast,
)


def parallel(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Causal attention, all queries at once (Vaswani et al. 2017, equation 1, with a mask).

    q: [B, Tq, H, K], the queries of the last Tq of Tk positions.
    k: [B, Tk, Hk, K] and v: [B, Tk, Hk, V]; H is a multiple of Hk, and each key head serves
        H / Hk neighbouring query heads.
    scale: factor on the scores before the softmax, K**-0.5 by default.
    Returns [B, Tq, H, V] in q's dtype, computed in float64 for float64 and else in float32.
    Raises ValueError for a shape, dtype or device that does not fit.
    """
    p = weights(q, k, scale=scale)  # [B, H, Tq, Tk]
    _check_values(k, v)
    with without_autocast(q):
        p = p.unflatten(1, (k.shape[2], -1))  # [B, Hk, G, Tq, Tk]: G queries share a key head
        out = torch.einsum("bhgts,bshv->bthgv", p, v.to(p.dtype))
    return out.flatten(2, 3).to(q.dtype)


def weights(q: Tensor, k: Tensor, *, scale: float | None = None) -> Tensor:
    """How much each query takes from each position: the rows of softmax(scale * q k^T).

    q, k, scale and errors: as in `parallel`.
    Returns [B, H, Tq, Tk], float64 for float64 and else float32; every row sums to 1, and no
    query gives weight to a position after its own.
    """
    _check_keys(q, k, scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = compute_dtype(q)
    with without_autocast(q):
        grouped = q.to(dtype).unflatten(2, (k.shape[2], -1))  # [B, Tq, Hk, G, K]
        scores = scale * torch.einsum("bthgk,bshk->bhgts", grouped, k.to(dtype))
        # Masked before the exponential: afterwards would be right forward, NaN backward.
        scores = scores.masked_fill(~causal_mask(q.shape[1], k.shape[1], q.device), -math.inf)
        return scores.softmax(dim=-1).flatten(1, 2)


def causal_mask(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    """True where a query (row) may see a key (column): [Tq, Tk]; the last row sees all."""
    query = torch.arange(num_keys - num_queries, num_keys, device=device)
    key = torch.arange(num_keys, device=device)
    return key <= query[:, None]


def chunked(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, chunk_size: int = 256
) -> Tensor:
    """Causal attention over one chunk of keys at a time: no T x T matrix, forward or backward.

    q, k, v, scale, result and errors: as in `parallel`.
    chunk_size: keys per chunk, at least 1; it changes the cost, not the result.
    Differentiable once: NotImplementedError for create_graph=True.
    Sources: Milakov and Gimelshein 2018 (arXiv:1805.02867), algorithm 3: the running softmax;
    Dao et al. 2022 (arXiv:2205.14135), algorithms 1 and 4: the weights computed again backward.
    """
    _check_keys(q, k, scale)
    _check_values(k, v)
    require_count("chunk_size", chunk_size)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = compute_dtype(q)
    with without_autocast(q):
        # [B, Hk, G, Tq, K], and keys and values [B, Hk, 1, Tk, .]: G queries share a key head
        grouped = (scale * q.to(dtype)).unflatten(2, (k.shape[2], -1)).permute(0, 2, 3, 1, 4)
        keys, values = (x.to(dtype).transpose(1, 2).unsqueeze(2) for x in (k, v))
        out = _OnlineSoftmax.apply(grouped, keys, values, chunk_size)
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3).to(q.dtype)


class _OnlineSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, chunk_size: int) -> Tensor:
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        total = q.new_zeros(*q.shape[:-1], 1)  # of exp(score - largest)
        largest = torch.full_like(total, -math.inf)
        for rows, keys, scores in _causal_chunks(q, k, chunk_size):
            seen = largest[..., rows, :]
            now = torch.maximum(seen, scores.amax(-1, keepdim=True))
            p, shrink = (scores - now).exp(), (seen - now).exp()
            total[..., rows, :] = shrink * total[..., rows, :] + p.sum(-1, keepdim=True)
            out[..., rows, :] = shrink * out[..., rows, :] + p @ v[..., keys, :]
            largest[..., rows, :] = now
        out /= total
        ctx.save_for_backward(q, k, v, out, largest + total.log())
        ctx.chunk_size = chunk_size
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_gradient("parallel")
        q, k, v, out, log_total = ctx.saved_tensors
        (d_out,) = grads
        dq, dk, dv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        through_total = (d_out * out).sum(-1, keepdim=True)
        for rows, keys, scores in _causal_chunks(q, k, ctx.chunk_size):
            d = d_out[..., rows, :]
            p = (scores - log_total[..., rows, :]).exp()
            d_scores = p * (d @ v[..., keys, :].mT - through_total[..., rows, :])
            dq[..., rows, :] += d_scores @ k[..., keys, :]
            dk[..., keys, :] = (d_scores.mT @ q[..., rows, :]).sum(2, keepdim=True)
            dv[..., keys, :] = (p.mT @ d).sum(2, keepdim=True)
        return dq, dk, dv, None


def _causal_chunks(
    q: Tensor, k: Tensor, chunk_size: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Chunks of keys with the queries that may see any of them, and their masked scores."""
    Tq, Tk = q.shape[-2], k.shape[-2]
    for start in range(0, Tk, chunk_size):
        keys = slice(start, min(start + chunk_size, Tk))
        rows = slice(max(0, start - (Tk - Tq)), Tq)
        scores = q[..., rows, :] @ k[..., keys, :].mT
        position = torch.arange(Tk - Tq + rows.start, Tk, device=q.device)
        later = torch.arange(keys.start, keys.stop, device=q.device) > position[:, None]
        yield rows, keys, scores.masked_fill(later, -math.inf)


def _check_keys(q: Tensor, k: Tensor, scale: float | None) -> None:
    require_floats("q", q=q, k=k)
    require(q.dim() == 4 and q.numel() > 0, "q", list(q.shape), "[B, Tq, H, K], none of them 0")
    B, Tq, H, K = q.shape
    fits = k.dim() == 4 and k.shape[0] == B and k.shape[3] == K
    require(fits, "k", list(k.shape), f"[B, Tk, Hk, K] with B = {B} and K = {K} as in q")
    require(k.shape[1] >= Tq, "k", f"{k.shape[1]} positions", f"at least q's {Tq}")
    shared = k.shape[2] > 0 and H % k.shape[2] == 0
    require(shared, "k", f"{k.shape[2]} heads", f"a number of heads that divides q's {H}")
    require_scale(scale)


def _check_values(k: Tensor, v: Tensor) -> None:
    require_floats("k", k=k, v=v)
    fits = v.dim() == 4 and v.shape[:3] == k.shape[:3] and v.shape[-1] > 0
    require(fits, "v", list(v.shape), f"[B, Tk, Hk, V] with {list(k.shape[:3])} as in k")
