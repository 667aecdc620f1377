"""Linear attention: one page for everything, S_t = S_t-1 + k_t v_t^T, o_t = S_t^T q_t.

q, k are [B, T, H, K] after whatever feature map the layer applies; v is [B, T, H, V]; states
are [B, H, K, V]. float64 in: float64 throughout; otherwise the computation and the state are
float32 and the output has q's dtype. Source: Katharopoulos et al. 2020 (arXiv:2006.16236),
equations 16-20 without the normaliser, which is a second memory with v = 1.
"""

import torch
from torch import Tensor

from llmcourse.ops._chunks import from_chunks, in_segments, read, to_chunks
from llmcourse.ops._inputs import Inputs, full_precision, one_token, prepare


@full_precision
def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Token by token, the definition: add k_t v_t^T to the page, then read it with q_t.

    q, k [B, T, H, K]; v [B, T, H, V]; scale defaults to K**-0.5; initial_state [B, H, K, V] or
    zeros. Returns o [B, T, H, V] and the final state. Raises ValueError on a wrong shape, dtype
    or device.
    """
    x = prepare(q, k, v, scale=scale, initial_state=initial_state)
    S, outputs = x.state, []
    for q_t, k_t, v_t in zip(x.q.unbind(1), x.k.unbind(1), x.v.unbind(1), strict=True):
        S = S + torch.einsum("bhk,bhv->bhkv", k_t, v_t)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q_t, S))
    return x.scale * torch.stack(outputs, 1), S


def step(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One token: q, k [B, H, K]; v [B, H, V]; returns (o [B, H, V], new state [B, H, K, V])."""
    return one_token(recurrent, q, k, v, state=state, scale=scale)


@full_precision
def parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All at once, with the T x T scores that softmax attention has: O = (Q K^T . M) V + Q S_0.

    Arguments, results and errors as in recurrent; M is 1 on and below the diagonal, else 0.
    """
    x = prepare(q, k, v, scale=scale, initial_state=initial_state)
    q, k, v = (y.transpose(1, 2) for y in (x.q, x.k, x.v))  # [B, H, T, ...]
    o = (q @ k.mT).tril() @ v + q @ x.state
    return x.scale * o.transpose(1, 2).contiguous(), x.state + k.mT @ v


@full_precision
def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """Parallel inside a chunk; from chunk to chunk the page only grows by K^T V.

    Arguments, results and errors as in recurrent. chunk_size >= 1 is rounded up to a power of
    two; it changes the cost, not the result. Source: Yang et al. 2023 (arXiv:2312.06635),
    section 3.
    """
    x = prepare(q, k, v, scale=scale, initial_state=initial_state)
    return in_segments(_segment, x, chunk_size)


def _segment(x: Inputs, C: int) -> tuple[Tensor, Tensor]:
    q, k, v = (to_chunks(y, C) for y in (x.q, x.k, x.v))
    pages = [x.state.flatten(0, 1)]
    for k_n, v_n in zip(k, v, strict=True):
        pages.append(torch.baddbmm(pages[-1], k_n.mT, v_n))
    o = read((q @ k.mT).tril(), v, q, torch.stack(pages[:-1]), x.scale)
    return from_chunks(o, x.q), pages[-1].view_as(x.state)
