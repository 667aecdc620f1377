"""The delta rule: erase before you write.

S_t = S_t-1 + beta_t k_t (v_t - S_t-1^T k_t)^T,  o_t = S_t^T q_t.
q, k are [B, T, H, K], keys meant to have unit length; v is [B, T, H, V]; beta, the write
strength, is [B, T, H] in [0, 2]; states are [B, H, K, V]. float64 in: float64 throughout;
otherwise the computation and the state are float32 and the output has q's dtype. Source: Schlag
et al. 2021 (arXiv:2102.11174), equation 24; in chunks Yang et al. 2024 (arXiv:2406.06484).
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
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Token by token, the definition: read what the key holds, write the difference.

    q, k [B, T, H, K]; v [B, T, H, V]; beta [B, T, H] in [0, 2]; scale defaults to K**-0.5;
    initial_state [B, H, K, V] or zeros. Returns o [B, T, H, V] and the final state.
    Raises ValueError on a wrong shape, dtype, device or range.
    """
    x = prepare(q, k, v, beta=beta, scale=scale, initial_state=initial_state)
    S, outputs = x.state, []
    for q_t, k_t, v_t, b_t in zip(*(y.unbind(1) for y in (x.q, x.k, x.v, x.beta)), strict=True):
        held = torch.einsum("bhk,bhkv->bhv", k_t, S)
        S = S + torch.einsum("bhk,bhv->bhkv", k_t, b_t.unsqueeze(-1) * (v_t - held))
        outputs.append(torch.einsum("bhk,bhkv->bhv", q_t, S))
    return x.scale * torch.stack(outputs, 1), S


def step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One token: q, k [B, H, K]; v [B, H, V]; beta [B, H]; returns (o [B, H, V], new state)."""
    return one_token(recurrent, q, k, v, beta, state=state, scale=scale)


@full_precision
def parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All at once: what every token writes, solved for in one T x T triangle.

    (I + Diag(beta) tril(K K^T, -1)) U = Diag(beta) (V - K S_0); O = tril(Q K^T) U + Q S_0.
    Arguments, results and errors as in recurrent. Source: Yang et al. 2024 (arXiv:2406.06484),
    equation 11 with one chunk.
    """
    x = prepare(q, k, v, beta=beta, scale=scale, initial_state=initial_state)
    q, k, v = (y.transpose(1, 2) for y in (x.q, x.k, x.v))  # [B, H, T, ...]
    beta, S = x.beta.transpose(1, 2).unsqueeze(-1), x.state
    A = beta * (k @ k.mT).tril(-1)
    u = torch.linalg.solve_triangular(A, beta * (v - k @ S), upper=False, unitriangular=True)
    o = (q @ k.mT).tril() @ u + q @ S
    return x.scale * o.transpose(1, 2).contiguous(), S + k.mT @ u


@full_precision
def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """The WY form: what a chunk writes, solved for at once, T = (I + Diag(beta) tril(K K^T,
    -1))^-1 Diag(beta).

    Arguments, results and errors as in recurrent. chunk_size >= 1 is rounded up to a power of
    two; it changes the cost, not the result. Source: Yang et al. 2024 (arXiv:2406.06484),
    equations 8-11.
    """
    x = prepare(q, k, v, beta=beta, scale=scale, initial_state=initial_state)
    return in_segments(_segment, x, chunk_size)


def _segment(x: Inputs, C: int) -> tuple[Tensor, Tensor]:
    q, k, v, beta = (to_chunks(y, C) for y in (x.q, x.k, x.v, x.beta.unsqueeze(-1)))
    solve = unit_lower_inverse(beta * (k @ k.mT).tril(-1)) * beta.mT
    keep = k.new_ones(*k.shape[:2], 1)
    written, pages, state = walk(solve @ k, solve @ v, k, keep, x.state)
    o = read((q @ k.mT).tril(), written, q, pages, x.scale)
    return from_chunks(o, x.q), state
