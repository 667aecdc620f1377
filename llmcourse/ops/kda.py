"""Kimi Delta Attention: the gated delta rule with a rate of forgetting for each channel.

S' = Diag(exp(g_t)) S_t-1,  S_t = S' + beta_t k_t (v_t - S'^T k_t)^T,  o_t = S_t^T q_t.
q, k are [B, T, H, K], keys meant to have unit length; v is [B, T, H, V]; g, the log decay, is
[B, T, H, K], finite and <= 0; beta is [B, T, H] in [0, 2]; states are [B, H, K, V].
float64 in: float64 throughout; otherwise the computation and the state are float32 and the
output has q's dtype. Source: Kimi Team 2025 (arXiv:2510.26692), equation 1.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from llmcourse.ops._chunks import (
    from_chunks,
    halves,
    in_segments,
    lower_blocks,
    read,
    to_chunks,
    unit_lower_inverse,
    walk,
)
from llmcourse.ops._inputs import Inputs, full_precision, one_token, prepare
from llmcourse.ops.common import refuse_second_gradient


@full_precision
def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Token by token, the definition: fade each channel, read what the key holds, write the
    difference.

    q, k [B, T, H, K]; v [B, T, H, V]; g [B, T, H, K] log decay <= 0; beta [B, T, H] in [0, 2];
    scale defaults to K**-0.5; initial_state [B, H, K, V] or zeros. Returns o [B, T, H, V] and
    the final state. Raises ValueError on a wrong shape, dtype, device or range.
    """
    x = prepare(
        q, k, v, g=g, beta=beta, per_channel=True, scale=scale, initial_state=initial_state
    )
    S, outputs = x.state, []
    tokens = zip(*(y.unbind(1) for y in (x.q, x.k, x.v, x.g.exp(), x.beta)), strict=True)
    for q_t, k_t, v_t, decay_t, b_t in tokens:
        S = decay_t.unsqueeze(-1) * S
        held = torch.einsum("bhk,bhkv->bhv", k_t, S)
        S = S + torch.einsum("bhk,bhv->bhkv", k_t, b_t.unsqueeze(-1) * (v_t - held))
        outputs.append(torch.einsum("bhk,bhkv->bhv", q_t, S))
    return x.scale * torch.stack(outputs, 1), S


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """One token: q, k, g [B, H, K]; v [B, H, V]; beta [B, H]; returns (o, new state)."""
    return one_token(recurrent, q, k, v, g, beta, state=state, scale=scale)


@full_precision
def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule in chunks, every channel decayed by what lies between two tokens.

    Arguments, results and errors as in recurrent. chunk_size >= 1 is rounded up to a power of
    two; it changes the cost, not the result. Source: Kimi Team 2025 (arXiv:2510.26692), section
    3; instead of sub-chunks of 16 and a bounded gate, decayed_products halves all the way.
    Differentiable once: NotImplementedError for create_graph=True.
    """
    x = prepare(
        q, k, v, g=g, beta=beta, per_channel=True, scale=scale, initial_state=initial_state
    )
    return in_segments(_segment, x, chunk_size)


def _segment(x: Inputs, C: int) -> tuple[Tensor, Tensor]:
    q, k, v, beta = (to_chunks(y, C) for y in (x.q, x.k, x.v, x.beta.unsqueeze(-1)))
    qk, kk, q_in, k_in, k_out, keep = decayed(q, k, to_chunks(x.g, C))
    solve = unit_lower_inverse(beta * kk) * beta.mT
    written, pages, state = walk(solve @ k_in, solve @ v, k_out, keep, x.state)
    o = read(qk, written, q_in, pages, x.scale)
    return from_chunks(o, x.q), state


def decayed(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """What the tokens of a chunk are to one another and to its ends, each channel decayed.

    q, k, g: [..., C, K], g in log space, C a power of two. Returns
    qk [..., C, C], sum_c q_ic k_jc exp(g_j+1,c + ... + g_i,c) for j <= i, 0 elsewhere;
    kk [..., C, C], the same of k with itself for j < i;
    q_in, k_in [..., C, K], decayed from the chunk's start, times exp(g_1 + ... + g_i);
    k_out [..., C, K], decayed to the chunk's end, times exp(g_i+1 + ... + g_C);
    keep [..., K], the decay of the whole chunk, exp(g_1 + ... + g_C).

    The decay between j and i factors at any place in between. A chunk is cut in half, and the
    halves again: for tokens in different halves the factors meet at the cut, decay from j to
    the cut and from the cut to i. Both are products of decays, at most 1, so that nothing
    overflows whatever the gate; and no sum of logs is subtracted from another, so that nothing
    cancels.
    """
    return _Decayed.apply(q, k, g)


class _Decayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        keep = g.exp()  # of blocks of one token, then two, four ...
        q_in, k_in, k_out = q * keep, k * keep, k.clone()
        qk = torch.diag_embed((q * k).sum(-1))
        kk = torch.zeros_like(qk)
        size = 1
        while size < g.shape[-2]:
            first, second = (x.unsqueeze(-2) for x in keep.unflatten(-2, (-1, 2)).unbind(-2))
            before = halves(k_out, size)[0]
            for x, products in ((q_in, qk), (k_in, kk)):
                after = halves(x, size)[1]
                lower_blocks(products, size).copy_(after @ before.mT)
                after.mul_(first)
            before.mul_(second)
            keep = (first * second).squeeze(-2)
            size *= 2
        keep = keep.squeeze(-2)
        ctx.save_for_backward(q, k, g, k_out, keep)
        return qk, kk, q_in, k_in, k_out, keep

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        refuse_second_gradient("recurrent")
        q, k, g, k_out, keep = ctx.saved_tensors
        d_qk, d_kk, d_q_in, d_k_in, d_k_out, d_keep = grads
        since_start, to_end = g.exp(), torch.ones_like(g)
        d_q, d_later, d_earlier = (torch.zeros_like(k) for _ in range(3))  # k reads, k is read
        for size, from_cut, to_cut in _cuts(since_start, to_end):
            before = halves(k, size)[0] * to_cut
            for x, d_x, d_products in ((q, d_q, d_qk), (k, d_later, d_kk)):
                d = lower_blocks(d_products, size)
                after = halves(x, size)[1] * from_cut
                halves(d_x, size)[1].addcmul_(d @ before, from_cut)
                halves(d_earlier, size)[0].addcmul_(d.mT @ after, to_cut)
        d_q.addcmul_(since_start, d_q_in)
        d_later.addcmul_(since_start, d_k_in)
        # g_t is in what tokens from t on read of earlier ones, in k_out before t, and in keep.
        d_g = _sum_from(q * d_q + k * (d_later - d_earlier)) + _sum_before(k_out * d_k_out)
        d_g += (keep * d_keep).unsqueeze(-2)
        diagonal = d_qk.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        d_k = (d_later + d_earlier).addcmul_(to_end, d_k_out).addcmul_(diagonal, q)
        return d_q.addcmul_(diagonal, k), d_k, d_g


def _cuts(since_start: Tensor, to_end: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Cut blocks of 2, 4, ... C tokens in the middle; yield size, decays from and to the cuts.

    since_start and to_end are the decays in a block of one token, exp(g) and 1, and grow in
    place to those of the whole chunk; from and to the cut they are [..., n, size, K].
    """
    size = 1
    while size < since_start.shape[-2]:
        before_start, from_cut = halves(since_start, size)
        to_cut = halves(to_end, size)[0]
        yield size, from_cut, to_cut
        to_cut.mul_(from_cut[..., -1:, :])
        from_cut.mul_(before_start[..., -1:, :])
        size *= 2


def _sum_from(x: Tensor) -> Tensor:
    """x_t + ... + x_C along the next to last axis."""
    return x.new_ones(x.shape[-2], x.shape[-2]).triu() @ x


def _sum_before(x: Tensor) -> Tensor:
    """x_1 + ... + x_t-1 along the next to last axis."""
    return x.new_ones(x.shape[-2], x.shape[-2]).tril(-1) @ x
