"""The gated delta rule: decay, then erase and write, one rate for a whole head.

S' = exp(g_t) S_t-1, S_t = S' + beta_t k_t (v_t - S'^T k_t)^T, o_t = S_t^T q_t. q, k are [B, T,
H, K], keys meant to have unit length; v is [B, T, H, V]; g, the log decay, is [B, T, H], finite
and <= 0; beta is [B, T, H] in [0, 2]; states are [B, H, K, V]. float64 in: float64 throughout;
otherwise the computation and the state are float32 and the output has q's dtype. Source: Yang
et al. 2024 (arXiv:2412.06464), equation 10 (theirs writes S transposed).
"""

import torch
from torch import Tensor

from llmcourse.ops._chunks import (
    from_chunks,
    in_segments,
    read,
    to_chunks,
    unit_lower_inverse,
    walk,
)
from llmcourse.ops._inputs import Inputs, full_precision, one_token, prepare


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
    """Token by token, the definition: fade the page, read what the key holds, write the
    difference.

    q, k [B, T, H, K]; v [B, T, H, V]; g [B, T, H] log decay <= 0; beta [B, T, H] in [0, 2];
    scale defaults to K**-0.5; initial_state [B, H, K, V] or zeros. Returns o [B, T, H, V] and
    the final state. Raises ValueError on a wrong shape, dtype, device or range.
    """
    x = prepare(q, k, v, g=g, beta=beta, scale=scale, initial_state=initial_state)
    S, outputs = x.state, []
    tokens = zip(*(y.unbind(1) for y in (x.q, x.k, x.v, x.g.exp(), x.beta)), strict=True)
    for q_t, k_t, v_t, decay_t, b_t in tokens:
        S = decay_t[..., None, None] * S
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
    """One token: q, k [B, H, K]; v [B, H, V]; g, beta [B, H]; returns (o, new state)."""
    return one_token(recurrent, q, k, v, g, beta, state=state, scale=scale)


def decay_matrix(g: Tensor) -> Tensor:
    """D[i, j] = exp(g_j+1 + ... + g_i) on and below the diagonal, 0 above: [..., C] -> [..., C,
    C].

    The sums run over the tokens in between only: a difference of two long cumulative sums would
    lose its digits after a strong decay. The mask comes before exp, so that no gradient is inf
    * 0.
    """
    C = g.shape[-1]
    between = g.unsqueeze(-1).expand(*g.shape, C).tril(-1).cumsum(-2)
    above = torch.ones(C, C, dtype=torch.bool, device=g.device).triu(1)
    return between.masked_fill(above, -torch.inf).exp()


@full_precision
def parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All at once, in one T x T triangle, with D_ij the decay between tokens j and i.

    (I + Diag(beta) tril(D . K K^T, -1)) U = Diag(beta) (V - Diag(d) K S_0), d_i the decay since
    the start; O = (D . Q K^T) U + Diag(d) Q S_0. Arguments, results and errors as in recurrent.
    """
    x = prepare(q, k, v, g=g, beta=beta, scale=scale, initial_state=initial_state)
    q, k, v = (y.transpose(1, 2) for y in (x.q, x.k, x.v))  # [B, H, T, ...]
    g, beta = x.g.transpose(1, 2), x.beta.transpose(1, 2).unsqueeze(-1)
    D, start = decay_matrix(g), g.cumsum(-1).exp().unsqueeze(-1)
    A = beta * (D * (k @ k.mT)).tril(-1)
    held = start * (k @ x.state)
    u = torch.linalg.solve_triangular(A, beta * (v - held), upper=False, unitriangular=True)
    o = (D * (q @ k.mT)) @ u + start * (q @ x.state)
    state = start[..., -1:, :] * x.state + (D[..., -1, :].unsqueeze(-1) * k).mT @ u
    return x.scale * o.transpose(1, 2).contiguous(), state


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
    """The delta rule in chunks with every product of two tokens decayed by what lies between
    them.

    Arguments, results and errors as in recurrent. chunk_size >= 1 is rounded up to a power of
    two; it changes the cost, not the result. Source: Yang et al. 2024 (arXiv:2412.06464),
    section 3.3.
    """
    x = prepare(q, k, v, g=g, beta=beta, scale=scale, initial_state=initial_state)
    return in_segments(_segment, x, chunk_size)


def _segment(x: Inputs, C: int) -> tuple[Tensor, Tensor]:
    q, k, v, g = (to_chunks(y, C) for y in (x.q, x.k, x.v, x.g))
    beta = to_chunks(x.beta.unsqueeze(-1), C)
    D = decay_matrix(g)
    solve = unit_lower_inverse(beta * (D * (k @ k.mT)).tril(-1)) * beta.mT
    since_start = (
        g.cumsum(-1).exp().unsqueeze(-1)
    )  # decay from the chunk's start up to each token
    to_end = D[..., -1, :].unsqueeze(-1)  # decay from each token to the chunk's end
    written, pages, state = walk(
        solve @ (since_start * k), solve @ v, to_end * k, since_start[..., -1, :], x.state
    )
    o = read(D * (q @ k.mT), written, since_start * q, pages, x.scale)
    return from_chunks(o, x.q), state
