"""What the chunked forms share: a layout, the inverse of a triangle, the walk over chunks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from llmcourse.ops._inputs import Inputs
from llmcourse.ops.common import refuse_second_gradient, require_count


def chunk_length(chunk_size: int, T: int) -> int:
    """chunk_size rounded up to a power of two, which halves evenly; no more than T needs."""
    require_count("chunk_size", chunk_size)
    return 1 << (min(chunk_size, T) - 1).bit_length()


SEGMENT = (
    2**18
)  # numbers of one argument: 1 MB in float32, so that a CPU's caches hold the work


def in_segments(
    rule: Callable[[Inputs, int], tuple[Tensor, Tensor]], x: Inputs, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Apply rule(x, C) to one stretch of chunks after another, each from the state before it.

    On a CPU, what a stretch needs stays in the caches and is used again by the next, where all
    at once would fetch fresh memory. Elsewhere there is one stretch, as wide as can be.
    """
    B, T, H, K = x.q.shape
    C = chunk_length(chunk_size, T)
    tokens = max(1, SEGMENT // (B * H * K * C)) * C if x.q.device.type == "cpu" else T
    if tokens >= T:
        return rule(x, C)
    names = [n for n in ("q", "k", "v", "g", "beta") if getattr(x, n).numel()]
    state, outputs = x.state, []
    for parts in zip(*(getattr(x, n).split(tokens, dim=1) for n in names), strict=True):
        o, state = rule(x._replace(state=state, **dict(zip(names, parts, strict=True))), C)
        outputs.append(o)
    return torch.cat(outputs, dim=1), state


def to_chunks(x: Tensor, C: int) -> Tensor:
    """[B, T, H, ...] -> [N, B * H, C, ...]; zeros, which change no state, fill the end."""
    B, T, H, *rest = x.shape
    if T % C:
        x = torch.cat([x, x.new_zeros(B, -T % C, H, *rest)], dim=1)
    x = x.unflatten(1, (-1, C))
    return x.permute(1, 0, 3, 2, *range(4, x.dim())).flatten(1, 2).contiguous()


def from_chunks(x: Tensor, like: Tensor) -> Tensor:
    """[N, B * H, C, V] -> [B, T, H, V] as of `like`, without what filled the last chunk."""
    B, T, H = like.shape[:3]
    return x.unflatten(1, (B, H)).permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :T].contiguous()


def halves(x: Tensor, size: int, dim: int = -2) -> tuple[Tensor, Tensor]:
    """Views of the first and the second half of every block of 2 * size along dim."""
    first, second = x.unflatten(dim, (-1, 2, size)).unbind(dim - 1)
    return first, second


def diagonal_blocks(x: Tensor, size: int) -> Tensor:
    """A view of the diagonal blocks of 2 * size: [..., C, C] -> [..., n, 2, size, 2, size]."""
    n = x.shape[-1] // (2 * size)
    blocks = x.unflatten(-1, (n, 2, size)).unflatten(-4, (n, 2, size))
    return blocks.diagonal(dim1=-6, dim2=-3).movedim(-1, -5)


def lower_blocks(x: Tensor, size: int) -> Tensor:
    """A view of their lower left quarters: [..., C, C] -> [..., n, size, size]."""
    return diagonal_blocks(x, size)[..., 1, :, 0, :]


class _UnitLowerInverse(torch.autograd.Function):
    """[[P, 0], [L, Q]]^-1 = [[P^-1, 0], [-Q^-1 L P^-1, Q^-1]], from 1 x 1 blocks upwards."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        C = lower.shape[-1]
        one = torch.eye(C, dtype=lower.dtype, device=lower.device)
        inverse = one.repeat(*lower.shape[:-2], 1, 1)
        size = 1
        while size < C:
            blocks = diagonal_blocks(inverse, size)
            first, second = blocks[..., 0, :, 0, :], blocks[..., 1, :, 1, :]
            corner = lower_blocks(lower, size)
            product = corner if size == 1 else second @ corner @ first
            blocks[..., 1, :, 0, :] = -product
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """(I + lower)^-1 for strictly lower triangular matrices [..., C, C], C a power of two.

    The blocked form of forward substitution: log2(C) rounds of small matrix products.
    """
    return _UnitLowerInverse.apply(lower)


class _Walk(torch.autograd.Function):
    """The only sequential part: two small products a chunk, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, w: Tensor, u: Tensor, k: Tensor, decay: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        written, pages = u.clone(), state.new_empty(len(u) + 1, *state.shape)
        pages[0] = state
        for n, (w_n, k_n, decay_n) in enumerate(zip(w, k, decay, strict=True)):
            written[n].baddbmm_(w_n, pages[n], alpha=-1)
            torch.mul(decay_n.unsqueeze(-1), pages[n], out=pages[n + 1])
            pages[n + 1].baddbmm_(k_n.mT, written[n])
        entering = pages[:-1]
        ctx.save_for_backward(w, k, decay, entering, written)
        return written, entering, pages[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        refuse_second_gradient("recurrent")
        w, k, decay, entering, written = ctx.saved_tensors
        d_written, d_entering, d_state = grads
        d_u, d_pages = d_written.clone(), d_state.new_empty(len(w) + 1, *d_state.shape)
        d_pages[-1] = d_state
        for n in reversed(range(len(w))):
            d_u[n].baddbmm_(k[n], d_pages[n + 1])
            torch.addcmul(d_entering[n], decay[n].unsqueeze(-1), d_pages[n + 1], out=d_pages[n])
            d_pages[n].baddbmm_(w[n].mT, d_u[n], alpha=-1)
        leaving = d_pages[1:]
        d_w = torch.matmul(d_u, entering.mT).neg_()
        d_k = written @ leaving.mT
        d_decay = (leaving * entering).sum(-1).sum_to_size(decay.shape)
        return d_w, d_u, d_k, d_decay, d_pages[0]


def walk(
    w: Tensor, u: Tensor, k: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Carry the state: V_n = U_n - W_n S_n, S_n+1 = Diag(decay_n) S_n + K_n^T V_n.

    w, k [N, B * H, C, K]; u [N, B * H, C, V]; decay [N, B * H, K or 1], linear space; state
    [B, H, K, V]. Returns what is written, V [N, B * H, C, V]; the states that enter the chunks,
    [N, B * H, K, V]; and the last state [B, H, K, V].
    Source: Yang et al. 2024 (arXiv:2406.06484), equations 8 and 9, with a decay.
    """
    written, entering, last = _Walk.apply(w, u, k, decay, state.flatten(0, 1))
    return written, entering, last.view_as(state)


def read(scores: Tensor, written: Tensor, q: Tensor, pages: Tensor, scale: float) -> Tensor:
    """scale * (scores @ written + q @ pages): what a chunk holds, and what came before it.

    scores [N, B * H, C, C]; written [N, B * H, C, V]; q [N, B * H, C, K]; pages [N, B * H, K,
    V].
    """
    inside, q, pages = (x.flatten(0, 1) for x in (scores @ written, q, pages))
    return torch.baddbmm(inside, q, pages, beta=scale, alpha=scale).view_as(written)
