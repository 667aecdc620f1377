"""Mixture of experts: many MLPs, of which each token wakes a few, and how to keep all busy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.layers.mlp import GatedActivation, GatedMLP, situ, swiglu
from llmcourse.layers.norm import RMSNorm
from llmcourse.ops.common import (
    compute_dtype,
    require,
    require_count,
    require_number,
    without_autocast,
)

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": partial(torch.softmax, dim=-1),
}


class Routes(NamedTuple):
    """Where each of N tokens goes: what a `Router` returns.

    experts: [N, k] int64, the chosen ones of E, the best first.
    weights: [N, k], what each of their outputs counts for.
    scores: [N, E], from which both came; without the selection bias.
    """

    experts: Tensor
    weights: Tensor
    scores: Tensor


def choose(
    biased: Tensor, num_active: int, *, num_groups: int = 1, active_groups: int = 1
) -> Tensor:
    """The experts with the highest scores, for each token.

    biased: [N, E], scores plus selection bias.
    num_groups, active_groups: experts next to one another form groups, and a token chooses
        within the groups whose two best experts have the highest sum (DeepSeek-V3,
        arXiv:2412.19437, section 2.1.2: so that it visits few machines).
    Returns [N, num_active] int64, the best first.
    """
    if active_groups < num_groups:
        grouped = biased.unflatten(-1, (num_groups, -1))  # [N, G, E / G]
        best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
        closed = torch.ones_like(best, dtype=torch.bool)
        closed.scatter_(-1, best.topk(active_groups, dim=-1).indices, False)
        biased = grouped.masked_fill(closed.unsqueeze(-1), -torch.inf).flatten(-2)
    return biased.topk(num_active, dim=-1).indices


class Router(nn.Module):
    """Scores every expert for every token, and chooses a few (Shazeer et al. 2017).

    width: D, the number of channels.
    num_experts, num_active: E, and k of them for a token.
    scores: "softmax", shares among all experts; or "sigmoid", each expert on its own
        (DeepSeek-V3).
    num_groups, active_groups: limit the choice as in `choose`; 1 group: no limit.
    renormalise: divide the k weights by their sum. With one active expert every weight is then
        1, and the router learns nothing from the loss.
    scaling: multiplies the weights last.
    forward: x [N, D] -> `Routes`, in float32 unless x is float64, also under autocast.

    `bias` [E], a buffer, is added to the scores for the choice alone: it moves tokens from one
    expert to another without a say in the weights, and has no gradient. The balancing functions
    below return its next value.
    """

    def __init__(
        self,
        width: int,
        num_experts: int,
        num_active: int,
        *,
        scores: str = "sigmoid",
        num_groups: int = 1,
        active_groups: int = 1,
        renormalise: bool = True,
        scaling: float = 1.0,
    ) -> None:
        super().__init__()
        _check_counts(num_experts, num_active, num_groups, active_groups)
        require(scores in SCORES, "scores", repr(scores), f"one of {[*SCORES]}")
        require_number("scaling", scaling, lambda x: x > 0, "a number above 0")
        self.score = SCORES[scores]
        self.choose = partial(
            choose, num_active=num_active, num_groups=num_groups, active_groups=active_groups
        )
        self.renormalise, self.scaling = renormalise, scaling
        self.weight = nn.Parameter(torch.empty(num_experts, width))
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(num_experts))
        _initialise(self.weight)

    def forward(self, x: Tensor) -> Routes:
        dtype = compute_dtype(x)  # a rounded score may change which experts are chosen
        with without_autocast(x):
            scores = self.score(F.linear(x.to(dtype), self.weight.to(dtype)))
        experts = self.choose(scores.detach() + self.bias)
        weights = scores.gather(-1, experts)
        if self.renormalise:
            # Sigmoids of very low logits may all round to 0.
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routes(experts, self.scaling * weights, scores)


class Experts(nn.Module):
    """E gated MLPs of one shape, their weights stacked.

    num_experts, width, hidden: E, D and F.
    activation: joins gate and up, each [n, F], into [n, F].
    forward: rows [R, D] sorted by expert, and how many there are for each of the E -> [R, D].
    """

    def __init__(
        self, num_experts: int, width: int, hidden: int, activation: GatedActivation
    ) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(num_experts, hidden, width))
        self.up = nn.Parameter(torch.empty(num_experts, hidden, width))
        self.down = nn.Parameter(torch.empty(num_experts, width, hidden))
        self.activation = activation
        for weight in (self.gate, self.up, self.down):
            _initialise(weight)

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        gate, up = (grouped_linear(rows, counts, w) for w in (self.gate, self.up))
        return grouped_linear(self.activation(gate, up), counts, self.down)


def grouped_linear(rows: Tensor, counts: list[int], weight: Tensor) -> Tensor:
    """Each expert's own matrix on its own rows; an expert without rows costs nothing.

    rows: [R, I], sorted by expert; counts: rows of each of the E, R in all, which may be 0;
    weight: [E, O, I].
    Returns [R, O].
    """
    # Not weight[e]: its gradient is padded with zeros to all E matrices, once for each expert.
    pairs = zip(rows.split(counts), weight.unbind(), strict=True)
    outputs = [F.linear(x, w) for x, w in pairs if len(x) > 0]
    return torch.cat(outputs or [F.linear(rows, weight[0])])  # no rows at all: [0, O]


def dispatch(
    x: Tensor, routes: Routes, experts: Callable[[Tensor, list[int]], Tensor]
) -> Tensor:
    """Send each token to its experts, and add up what they say by their weights.

    A token appears k times among the rows; sorted by expert, each expert's rows lie together,
    so it works on all of them at once. The arithmetic is that of k experts a token.
    x: [N, D]; routes: of these N tokens; experts: called as `Experts`.
    Returns [N, D] in x's dtype, added up in the dtype of the weights.
    """
    N, k = routes.experts.shape
    chosen = routes.experts.flatten()
    order = chosen.argsort(stable=True)  # row r is choice order[r] % k of token order[r] // k
    counts = loads(routes).tolist()
    y = experts(x.index_select(0, order // k), counts)
    y = y.index_select(0, order.argsort()).unflatten(0, (N, k))  # token by token again
    return torch.einsum("nk,nkd->nd", routes.weights, y.to(routes.weights.dtype)).to(x.dtype)


class MixtureOfExperts(nn.Module):
    """An MLP in parts: k routed experts a token, and some that every token visits.

    width: D, the number of channels.
    expert_width: F, channels in the middle of one expert.
    num_experts, num_active: E routed experts, k of them a token.
    scores, num_groups, active_groups, renormalise, scaling: of the `Router`.
    num_shared: experts for every token, as one MLP with num_shared F channels in the middle
        (DeepSeekMoE, arXiv:2401.06066); their output is added without a weight.
    activation: joins gate and up in every expert.
    forward: x [..., D] -> [..., D].
    """

    def __init__(
        self,
        width: int,
        expert_width: int,
        num_experts: int,
        num_active: int,
        *,
        scores: str = "sigmoid",
        num_shared: int = 0,
        num_groups: int = 1,
        active_groups: int = 1,
        renormalise: bool = True,
        scaling: float = 1.0,
        activation: GatedActivation = swiglu,
    ) -> None:
        super().__init__()
        self.router = Router(
            width,
            num_experts,
            num_active,
            scores=scores,
            num_groups=num_groups,
            active_groups=active_groups,
            renormalise=renormalise,
            scaling=scaling,
        )
        self.experts = Experts(num_experts, width, expert_width, activation)
        self.shared = _shared(width, expert_width, num_shared, activation)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        y = dispatch(tokens, self.router(tokens), self.experts).view_as(x)
        return y if self.shared is None else y + self.shared(x)


class LatentMoE(nn.Module):
    """Experts that work in fewer channels than the model, so that there can be more of them.

    Kimi K3 (arXiv:2607.24653): the router and the shared experts read the token as it is; the
    routed experts read its projection, and their sum is normalised and projected back.
    width, latent_width: D, and L channels that the routed experts see.
    expert_width: F, channels in the middle of one expert.
    num_experts, num_active: E routed experts, k of them a token; sigmoid scores.
    num_shared, renormalise, scaling, activation: as in `MixtureOfExperts`. (The norm undoes any
        scaling of the routed sum but for its eps; Kimi K3 has 1.)
    norm_eps: of the norm.
    forward: x [..., D] -> [..., D].
    """

    def __init__(
        self,
        width: int,
        latent_width: int,
        expert_width: int,
        num_experts: int,
        num_active: int,
        *,
        num_shared: int = 2,
        renormalise: bool = True,
        scaling: float = 1.0,
        activation: GatedActivation = situ,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.router = Router(
            width, num_experts, num_active, renormalise=renormalise, scaling=scaling
        )
        self.down = nn.Linear(width, latent_width, bias=False)
        self.experts = Experts(num_experts, latent_width, expert_width, activation)
        self.norm = RMSNorm(latent_width, norm_eps)
        self.up = nn.Linear(latent_width, width, bias=False)
        self.shared = _shared(width, expert_width, num_shared, activation)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        latent = dispatch(self.down(tokens), self.router(tokens), self.experts)
        y = self.up(self.norm(latent)).view_as(x)
        return y if self.shared is None else y + self.shared(x)


def loads(routes: Routes) -> Tensor:
    """How many tokens each expert got: [E] int64, N k in all."""
    return torch.bincount(routes.experts.flatten(), minlength=routes.scores.shape[-1])


def balance_loss(routes: Routes) -> Tensor:
    """Balance by an auxiliary loss: E sum_e f_e p_e (Switch, arXiv:2101.03961, equation 4).

    f_e is expert e's part of all N k choices, without a gradient; p_e its mean part of a
    token's scores (sigmoids are divided by their sum, as in DeepSeek-V3, equation 19).
    Returns a scalar, 1 when all are used alike and up to E / k when k experts take all; add it
    to the loss with a small factor, 0.01 in Switch.
    """
    E = routes.scores.shape[-1]
    f = loads(routes) / routes.experts.numel()
    p = (routes.scores / routes.scores.sum(-1, keepdim=True)).mean(0)
    return E * (f * p).sum()


@torch.no_grad()
def bias_step(routes: Routes, bias: Tensor, rate: float = 0.001) -> Tensor:
    """Balance by steps of the selection bias (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).

    An expert with more tokens than the mean goes down by `rate`, one with fewer goes up.
    bias: [E], the router's. Returns the next one, [E].
    """
    load = loads(routes).to(bias.dtype)
    return bias - rate * torch.sign(load - load.mean())


@torch.no_grad()
def quantile_step(scores: Tensor, bias: Tensor, num_active: int) -> Tensor:
    """Balance by quantiles: the bias at which this batch would be spread evenly (Kimi K3).

    A token chooses an expert whose biased score is above its cut-off, the (k+1)-th largest;
    what lies between is the margin. Of m tokens q = m k / E (rounded down) should choose the
    expert, so its (q+1)-th largest margin is moved to 0. The other biases move too, and with
    them the cut-offs: the loads come near q over repeated batches, not at once.
    scores: [m, E], of a router without groups; bias: [E]; num_active: k, below E.
    Returns the next bias, [E]. Sources: arXiv:2607.24653; Su 2026, kexue.fm/archives/11619.
    """
    m, E = scores.shape
    require_count("num_active", num_active)
    require(num_active < E, "num_active", num_active, f"less than the {E} experts")
    biased = scores + bias
    margins = biased - biased.topk(num_active + 1, dim=-1).values[:, -1:]
    q = m * num_active // E
    return bias - margins.kthvalue(m - q, dim=0).values  # the (q+1)-th largest


@contextmanager
def watched_routes(model: nn.Module) -> Iterator[dict[str, Routes]]:
    """Within this context, the latest `Routes` of each router in the model, by its name.

    For balancing while training, and to see which experts a text wakes.
    """
    seen: dict[str, Routes] = {}

    def keep(name: str, router: nn.Module, inputs: Any, routes: Routes) -> None:
        seen[name] = routes

    routers = [(name, m) for name, m in model.named_modules() if isinstance(m, Router)]
    handles = [m.register_forward_hook(partial(keep, name)) for name, m in routers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _shared(
    width: int, expert_width: int, num_shared: int, activation: GatedActivation
) -> GatedMLP | None:
    require_count("num_shared", num_shared, least=0)
    return GatedMLP(width, num_shared * expert_width, activation) if num_shared else None


def _initialise(weight: Tensor) -> None:
    """Uniform within 1 / sqrt(inputs), as nn.Linear; the inputs are the last axis."""
    bound = weight.shape[-1] ** -0.5
    nn.init.uniform_(weight, -bound, bound)


def _check_counts(
    num_experts: int, num_active: int, num_groups: int, active_groups: int
) -> None:
    counts = {"num_experts": num_experts, "num_active": num_active}
    counts |= {"num_groups": num_groups, "active_groups": active_groups}
    for name, count in counts.items():
        require_count(name, count)
    divides = num_experts % num_groups == 0
    require(divides, "num_groups", num_groups, f"a divisor of num_experts = {num_experts}")
    require(
        active_groups <= num_groups, "active_groups", active_groups, f"at most {num_groups}"
    )
    most = num_experts // num_groups * active_groups
    needs = f"at most the {most} experts that a token may choose from"
    require(num_active <= most, "num_active", num_active, needs)
