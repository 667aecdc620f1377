"""What every recurrent memory rule asks of its arguments, and the precision it computes in."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from llmcourse.ops.common import (
    compute_dtype,
    require,
    require_scale,
    require_tensor,
    without_autocast,
)

Rule = Callable[..., tuple[Tensor, Tensor]]


class Inputs(NamedTuple):
    """Checked arguments in the precision of the computation."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor
    scale: float


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    per_channel: bool = False,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> Inputs:
    """Check a rule's arguments and bring them to float32, or to float64 if q is float64.

    A rule without a gate or a write strength gets empty tensors for g and beta. Raises
    ValueError naming the argument, what it got and what it needs. Values (of g and beta) are
    not looked at on the meta device, nor while torch.compile traces, whose graph would break.
    """
    optional = {"g": g, "beta": beta, "initial_state": initial_state}
    given = {"q": q, "k": k, "v": v} | {n: x for n, x in optional.items() if x is not None}
    require_scale(scale)
    for name, x in given.items():
        require_tensor(name, x)
    require(q.dim() == 4 and q.numel() > 0, "q", list(q.shape), "[B, T, H, K], none of them 0")
    B, T, H, K = q.shape
    require(
        v.dim() == 4 and v.shape[-1] > 0, "v", list(v.shape), "[B, T, H, V], none of them 0"
    )
    V = v.shape[-1]
    shapes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, H, V), "beta": (B, T, H)}
    shapes |= {"g": (B, T, H, K) if per_channel else (B, T, H), "initial_state": (B, H, K, V)}
    for name, x in given.items():
        require(x.shape == shapes[name], name, list(x.shape), str(list(shapes[name])))
        require(x.device == q.device, name, x.device, f"the device of q, {q.device}")
    _require_between("g", g, -torch.finfo(torch.float32).max, 0, "a finite log decay <= 0")
    _require_between("beta", beta, 0, 2, "a write strength from 0 to 2")
    dtype = compute_dtype(q)
    empty = q.new_empty(0, dtype=dtype)
    zeros = q.new_zeros(B, H, K, V, dtype=dtype)
    return Inputs(
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        empty if g is None else g.to(dtype),
        empty if beta is None else beta.to(dtype),
        zeros if initial_state is None else initial_state.to(dtype),
        K**-0.5 if scale is None else scale,
    )


def full_precision(rule: Rule) -> Callable[..., Any]:
    """Run a rule outside autocast, and give its output (not its state) the dtype of q."""

    @wraps(rule)
    def wrapped(q: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        require_tensor("q", q)
        with without_autocast(q):
            o, state = rule(q, *args, **options)
        return o.to(q.dtype), state

    return wrapped


def one_token(
    rule: Rule, *tokens: Tensor, state: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Apply a rule to tensors without a T axis ([B, H, K] ...), given the state before them."""
    o, state = rule(*(x.unsqueeze(1) for x in tokens), scale=scale, initial_state=state)
    return o.squeeze(1), state


def _require_between(name: str, x: Tensor | None, low: float, high: float, needs: str) -> None:
    if x is None or x.is_meta or torch.compiler.is_compiling():
        return
    least, most = x.detach().aminmax()  # a NaN is in neither range
    got = f"values from {least.item():g} to {most.item():g}"
    require(bool(least >= low) and bool(most <= high), name, got, needs)
