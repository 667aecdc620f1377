"""What the chunked forms share: a layout, the inverse of a triangle, the walk over chunks."""

from typing import Any

import torch
from torch import Tensor

from llmcourse.ops.common import require_count


def chunk_length(chunk_size: int, T: int) -> int:
    """chunk_size rounded up to a power of two, which halves evenly; no more than T needs."""
    require_count("chunk_size", chunk_size)
    return 1 << (min(chunk_size, T) - 1).bit_length()


def to_chunks(x: Tensor, C: int) -> Tensor:
    """[B, T, H, ...] -> [B, H, N, C, ...]; zeros, which change no state, fill the end."""
    B, T, H, *rest = x.shape
    if T % C:
        x = torch.cat([x, x.new_zeros(B, -T % C, H, *rest)], dim=1)
    x = x.unflatten(1, (-1, C))
    return x.permute(0, 3, 1, 2, *range(4, x.dim())).contiguous()


def from_chunks(x: Tensor, T: int) -> Tensor:
    """[B, H, N, C, V] -> [B, T, H, V], without what filled the last chunk."""
    return x.flatten(2, 3)[:, :, :T].transpose(1, 2).contiguous()


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
            blocks[..., 1, :, 0, :] = -(second @ lower_blocks(lower, size) @ first)
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
        states, writes = [], []
        chunks = zip(*(x.unbind(2) for x in (w, u, k, decay)), strict=True)
        for w_n, u_n, k_n, decay_n in chunks:
            states.append(state)
            writes.append(add_product(u_n, w_n, state, -1))
            state = add_product(decay_n.unsqueeze(-1) * state, k_n.mT, writes[-1])
        entering, written = torch.stack(states, 2), torch.stack(writes, 2)
        ctx.save_for_backward(w, k, decay, entering, written)
        return written, entering, state

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        w, k, decay, entering, written = ctx.saved_tensors
        d_written, d_entering, d_state = grads
        d_leaving, d_writes = [], []
        chunks = zip(*(x.unbind(2) for x in (w, k, decay, d_written, d_entering)), strict=True)
        for w_n, k_n, decay_n, d_written_n, d_entering_n in reversed(list(chunks)):
            d_leaving.append(d_state)
            d_writes.append(add_product(d_written_n, k_n, d_state))
            d_state = torch.addcmul(d_entering_n, decay_n.unsqueeze(-1), d_state)
            d_state = add_product(d_state, w_n.mT, d_writes[-1], -1)
        leaving, d_u = torch.stack(d_leaving[::-1], 2), torch.stack(d_writes[::-1], 2)
        d_w = -(d_u @ entering.mT)
        d_k = written @ leaving.mT
        d_decay = (leaving * entering).sum(-1).sum_to_size(decay.shape)
        return d_w, d_u, d_k, d_decay, d_state


def add_product(c: Tensor, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
    """c + sign * a @ b in one call, for [..., n, m], [..., n, k] and [..., k, m]."""
    c_, a_, b_ = (x.flatten(0, -3) for x in (c, a, b))
    return torch.baddbmm(c_, a_, b_, alpha=sign).view_as(c)


def walk(
    w: Tensor, u: Tensor, k: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Carry the state: V_n = U_n - W_n S_n, S_n+1 = Diag(decay_n) S_n + K_n^T V_n.

    w, k [B, H, N, C, K]; u [B, H, N, C, V]; decay [B, H, N, K or 1], linear space; state
    [B, H, K, V]. Returns what is written, V [B, H, N, C, V]; the states that enter the chunks,
    [B, H, N, K, V]; and the last state [B, H, K, V].
    Source: Yang et al. 2024 (arXiv:2406.06484), equations 8 and 9, with a decay.
    """
    return _Walk.apply(w, u, k, decay, state)
