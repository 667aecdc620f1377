"""Mixtures of experts: the golden Kimi K3, `transformers`, a loop over tokens, and balance."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from transformers import DeepseekV3Config, KimiLinearConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearMoE

from llmcourse.layers import moe
from llmcourse.layers.mlp import SiTUGLU, SwiGLU, situ, swiglu
from llmcourse.layers.moe import LatentMoE, MixtureOfExperts, Router, Routes

GOLDEN = Path(__file__).parents[1] / "golden" / "kimi_k3_tiny"
D, F, E, K = 12, 7, 8, 3


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def randn(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def shuffled(module, seed=0):
    """The module in float64 with no weight at its start, and selection biases that matter."""
    module = module.double()
    with torch.no_grad():
        for i, (name, p) in enumerate([*module.named_parameters(), *module.named_buffers()]):
            p.copy_(randn(*p.shape, seed=seed + i) / (10 if name.endswith("bias") else 2))
    return module


@pytest.fixture(scope="module")
def golden():
    config = json.loads((GOLDEN / "config.json").read_text())["text_config"]
    weights = load_file(GOLDEN / "model.safetensors")
    return config, weights, load_file(GOLDEN / "io.safetensors")


def named(weights, i, part):
    start = f"language_model.model.layers.{i}.{part}."
    return {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}


def gated(w, prefix=""):
    """Our names of a gated MLP from the checkpoint's."""
    return {f"{n}.weight": w[f"{prefix}{n}_proj.weight"] for n in ("gate", "up", "down")}


def latent_moe(config, w):
    """The LatentMoE of one layer of the golden model, from its checkpoint."""
    layer = LatentMoE(
        config["hidden_size"],
        config["routed_expert_hidden_size"],
        config["moe_intermediate_size"],
        config["num_experts"],
        config["num_experts_per_token"],
        num_shared=config["num_shared_experts"],
    )
    state = {
        "router.weight": w["gate.weight"],
        "router.bias": w["gate.e_score_correction_bias"],
    }
    for ours, theirs in {"gate": "w1", "up": "w3", "down": "w2"}.items():
        each = [w[f"experts.{e}.{theirs}.weight"] for e in range(config["num_experts"])]
        state[f"experts.{ours}"] = torch.stack(each)
    for ours, theirs in {"down": "down_proj", "up": "up_proj", "norm": "norm"}.items():
        state[f"{ours}.weight"] = w[f"routed_expert_{theirs}.weight"]
    shared = gated(w, "shared_experts.")
    layer.load_state_dict(state | {f"shared.{n}": x for n, x in shared.items()})
    return layer


# 1e-5 of the largest value: an independent implementation was within 3e-7.
def test_the_dense_layer_of_the_golden_k3(golden):
    config, weights, io = golden
    layer = SiTUGLU(config["hidden_size"], config["intermediate_size"])
    layer.load_state_dict(gated(named(weights, 0, "mlp")))
    with torch.no_grad():
        assert error(layer(io["layers.0.mlp.in"]), io["layers.0.mlp.out"]) < 1e-5


@pytest.mark.parametrize("i", [1, 3])
def test_the_latent_experts_of_the_golden_k3(golden, i):
    config, weights, io = golden
    layer = latent_moe(config, named(weights, i, "block_sparse_moe"))
    x, y = io[f"layers.{i}.mlp.in"], io[f"layers.{i}.mlp.out"]
    with torch.no_grad():
        assert error(layer(x), y) < 1e-5
        layer.router.bias.zero_()  # the recording has tokens that the bias sends elsewhere
        assert error(layer(x), y) > 0.1


THEIRS = {
    "deepseek": (DeepseekV3MoE, DeepseekV3Config, {"n_group": 4, "topk_group": 2}),
    "kimi": (KimiLinearMoE, KimiLinearConfig, {"n_group": 1, "topk_group": 1}),
    "kimi, groups": (KimiLinearMoE, KimiLinearConfig, {"n_group": 2, "topk_group": 1}),
    "deepseek, as scored": (
        DeepseekV3MoE,
        DeepseekV3Config,
        {"n_group": 4, "topk_group": 2, "norm_topk_prob": False},
    ),
}


@pytest.mark.parametrize("name", THEIRS)
def test_the_layer_is_that_of_transformers_with_gradients(name):
    layer, config, options = THEIRS[name]
    config = config(
        hidden_size=D,
        moe_intermediate_size=F,
        num_local_experts=E,
        n_routed_experts=E,
        num_experts_per_tok=K,
        n_shared_experts=2,
        routed_scaling_factor=2.446,
        **options,
    )
    config._experts_implementation = "eager"
    theirs = shuffled(layer(config).float()).float()  # their router computes in float32
    groups = {"num_groups": config.n_group, "active_groups": config.topk_group}
    ours = MixtureOfExperts(
        D, F, E, K, num_shared=2, scaling=2.446, renormalise=config.norm_topk_prob, **groups
    )
    gate, up = theirs.experts.gate_up_proj.detach().chunk(2, dim=1)
    state = {
        "router.weight": theirs.gate.weight,
        "router.bias": theirs.gate.e_score_correction_bias,
        "experts.gate": gate,
        "experts.up": up,
        "experts.down": theirs.experts.down_proj,
    }
    shared = gated(theirs.shared_experts.state_dict())
    ours.load_state_dict(state | {f"shared.{n}": w for n, w in shared.items()})
    x = randn(2, 19, D, seed=50).float().requires_grad_()
    y, expected = ours(x), theirs(x)
    assert error(y, expected) < 1e-5
    weights = randn(*y.shape, seed=51).float()
    (y * weights).sum().backward()
    got_x, x.grad = x.grad, None
    (expected * weights).sum().backward()
    assert error(got_x, x.grad) < 1e-5
    both = torch.cat([ours.experts.gate.grad, ours.experts.up.grad], dim=1)
    for got, wanted in [
        (both, theirs.experts.gate_up_proj.grad),
        (ours.experts.down.grad, theirs.experts.down_proj.grad),
        (ours.router.weight.grad, theirs.gate.weight.grad),
        (ours.shared.down.weight.grad, theirs.shared_experts.down_proj.weight.grad),
    ]:
        assert error(got, wanted) < 1e-5


def token_by_token(layer, tokens):
    """The definition: each token visits its experts, one after the other."""
    outputs = []
    for x in tokens:
        scores = layer.router.weight @ x
        scores = scores.softmax(0) if layer.scores == "softmax" else scores.sigmoid()
        chosen = (scores + layer.router.bias).argsort(descending=True)[:K].tolist()
        total = sum(scores[e] for e in chosen) if layer.router.renormalise else 1.0
        seen = x if layer.latent is None else layer.down.weight @ x
        y = 0
        for e in chosen:
            gate, up = layer.experts.gate[e] @ seen, layer.experts.up[e] @ seen
            h = layer.experts.activation(gate, up)
            y = y + layer.router.scaling * scores[e] / total * (layer.experts.down[e] @ h)
        if layer.latent is not None:
            y = layer.up.weight @ (layer.norm.weight * y / (y.square().mean() + 1e-5).sqrt())
        outputs.append(y if layer.shared is None else y + layer.shared(x))
    return torch.stack(outputs)


def made(name):
    """A layer in float64, and what `token_by_token` must know of it."""
    if name == "latent":
        layer, scores, latent = LatentMoE(D, 5, F, E, K, scaling=1.5), "sigmoid", 5
    else:
        scores, latent = name.split()[0], None
        shared, renormalise = ("shared" in name), ("renormalised" in name)
        layer = MixtureOfExperts(
            D, F, E, K, scores=scores, num_shared=int(shared), renormalise=renormalise
        )
    layer = shuffled(layer)
    layer.scores, layer.latent = scores, latent
    return layer


@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize(
    "name",
    ["softmax", "softmax renormalised", "sigmoid", "sigmoid renormalised shared", "latent"],
)
def test_dispatch_is_a_loop_over_tokens_with_gradients(name, tokens):
    layer, x = made(name), randn(tokens, D, seed=5).requires_grad_()
    got, expected = layer(x[None])[0], token_by_token(layer, x)
    assert error(got, expected) < 1e-12
    inputs, weights = [x, *layer.parameters()], randn(tokens, D, seed=6)
    pairs = zip(
        torch.autograd.grad((got * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    )
    for (a, b), p in zip(pairs, ["x", *dict(layer.named_parameters())], strict=True):
        assert error(a, b) < 1e-10, p


@given(E=st.integers(1, 9), data=st.data())
@settings(max_examples=25, deadline=None)
def test_with_experts_that_are_all_alike_nothing_depends_on_the_route(E, data):
    k = data.draw(st.integers(1, E))
    layer, x = shuffled(MixtureOfExperts(D, F, E, k)), randn(2, 9, D, seed=E)
    with torch.no_grad():
        for w in (layer.experts.gate, layer.experts.up, layer.experts.down):
            w.copy_(w[:1].expand_as(w))
        gate, up, down = (
            w[0] for w in (layer.experts.gate, layer.experts.up, layer.experts.down)
        )
        assert error(layer(x), swiglu(x @ gate.T, x @ up.T) @ down.T) < 1e-12


def test_only_experts_that_got_tokens_do_work():
    layer, called = made("sigmoid"), []

    def activation(gate, up):
        called.append(len(gate))
        return swiglu(gate, up)

    layer.experts.activation = activation
    with torch.no_grad():
        layer.experts.gate[3:] = torch.nan  # not even read
        layer.router.bias[:3] += 10
        assert layer(randn(1, 4, D)).isfinite().all()
    assert called == [4 * K]


def test_the_bias_changes_the_choice_but_not_the_weights():
    router, x = shuffled(Router(D, E, K, renormalise=False)), randn(50, D, seed=3)
    before = router(x)
    with torch.no_grad():
        router.bias[5] += 3
    after = router(x)
    assert (after.experts == 5).any(-1).all()
    assert not (before.experts == 5).any(-1).all()
    assert torch.equal(before.scores, after.scores)
    assert torch.equal(after.weights, after.scores.gather(-1, after.experts))


def test_a_token_stays_within_its_groups():
    biased = randn(200, 12)
    chosen = moe.choose(biased, 3, num_groups=4, active_groups=2)
    for row, experts in zip(biased, chosen.tolist(), strict=True):
        best_two = [row[g * 3 : g * 3 + 3].sort().values[1:].sum().item() for g in range(4)]
        groups = sorted(range(4), key=lambda g: -best_two[g])[:2]
        allowed = [e for g in groups for e in range(g * 3, g * 3 + 3)]
        assert experts == sorted(allowed, key=lambda e: -row[e].item())[:3]
    free = biased.topk(3).indices
    assert not torch.equal(chosen, free)  # the limit is felt
    assert torch.equal(moe.choose(biased, 3, num_groups=4, active_groups=4), free)


def test_weights_that_all_round_to_zero_stay_finite():
    router = Router(D, E, K)
    with torch.no_grad():
        router.weight.fill_(-1000.0)
    assert router(torch.ones(2, D)).weights.isfinite().all()


@pytest.mark.parametrize("autocast", [False, True])
def test_the_router_chooses_in_float32_whatever_the_tokens_are_in(autocast):
    layer, x = MixtureOfExperts(D, F, 64, K), randn(500, D).bfloat16()
    exact = layer.router(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        routes = layer.router(x)
        y = layer(x) if autocast else layer.bfloat16()(x)
    assert routes.scores.dtype == torch.float32
    assert torch.equal(routes.experts, exact.experts)
    assert y.dtype == torch.bfloat16


def skewed(tokens, seed=0):
    """Scores [tokens, 16] of a router with favourites, which would take most tokens."""
    favour = torch.linspace(-2, 2, 16, dtype=torch.float64)
    return torch.sigmoid(randn(tokens, 16, seed=seed) + favour)


def spread(scores, bias, k):
    """The largest load over the mean load."""
    routes = Routes(moe.choose(scores + bias, k), scores, scores)
    return (moe.loads(routes).max() * 16 / routes.experts.numel()).item()


def test_one_quantile_step_puts_q_tokens_over_the_cut_offs_that_it_saw():
    scores, bias, k, q = skewed(1000), randn(16, seed=1) / 5, 4, 250
    cut = (scores + bias).sort(-1, descending=True).values[:, k : k + 1]
    margins = scores + moe.quantile_step(scores, bias, k) - cut
    # An expert that is itself the cut-off of a token has a margin of 0 there, and it may be
    # the margin number q + 1: fewer are then above, and q between "above" and "not below".
    above, not_below = (margins > 1e-12).sum(0), (margins > -1e-12).sum(0)
    assert (above <= q).all() and (not_below > q).all()
    assert (above == q).sum() > 8


def test_quantile_steps_bring_the_loads_to_q_over_repeated_batches():
    k, bias = 2, torch.zeros(16, dtype=torch.float64)
    seen = [spread(skewed(4096, seed=99), bias, k)]
    for batch in range(12):
        bias = moe.quantile_step(skewed(4096, seed=batch), bias, k)
        seen.append(spread(skewed(4096, seed=99), bias, k))
    assert seen[0] > 2.5  # the favourites
    assert seen[1] > 1.05  # not at once
    # A load of 512 has a standard deviation of 21, and the bias that of its own batch:
    # 3.5 deviations of sqrt(2) 21 are 20% of the load.
    assert seen[-1] < 1.2


@pytest.mark.parametrize("k", [1, 2, 4])
def test_quantile_steps_on_one_batch_end_within_a_few_tokens_of_q(k):
    scores, bias = skewed(512), torch.zeros(16, dtype=torch.float64)
    for _ in range(50):
        bias = moe.quantile_step(scores, bias, k)
    q = 512 * k // 16
    # Seen: at most 3 tokens. The minimisation goes one bias at a time and can stop beside q.
    assert spread(scores, bias, k) * q <= q + 4


def test_bias_steps_bring_the_loads_together():
    k, bias = 2, torch.zeros(16, dtype=torch.float64)
    for batch in range(150):
        scores = skewed(1024, seed=batch)
        routes = Routes(moe.choose(scores + bias, k), scores, scores)
        bias = moe.bias_step(routes, bias, rate=0.01)
    assert spread(skewed(4096, seed=999), bias, k) < 1.3
    load = moe.loads(routes)
    moved = moe.bias_step(routes, bias, rate=0.5)
    assert torch.equal(moved, bias - 0.5 * torch.sign(load - 128))


def test_the_auxiliary_loss_is_one_when_even_and_brings_the_loads_together():
    even = torch.arange(16)[:, None]
    routes = Routes(even, torch.ones(16, 1), torch.full((16, 16), 0.3))
    assert moe.balance_loss(routes).item() == pytest.approx(1)
    one = torch.zeros(16, 16).index_fill(1, torch.tensor([2]), 1.0)
    assert moe.balance_loss(Routes(torch.full((16, 1), 2), one, one)).item() == 16
    torch.manual_seed(0)
    router, x = Router(D, 16, 2, scores="softmax"), randn(512, D).float() + 1
    optimiser = torch.optim.Adam(router.parameters(), lr=0.02)
    before = moe.loads(router(x)).max()
    for _ in range(100):
        optimiser.zero_grad()
        moe.balance_loss(router(x)).backward()
        optimiser.step()
    assert before > 128
    assert moe.loads(router(x)).max() < 0.8 * before


def test_watched_routes_are_those_of_every_router_while_one_looks():
    model = nn.Sequential(MixtureOfExperts(D, F, E, K), LatentMoE(D, 5, F, E, 2))
    x = torch.randn(2, 9, D)
    with moe.watched_routes(model) as seen:
        model(x)
    assert [*seen] == ["0.router", "1.router"]
    assert torch.equal(seen["0.router"].experts, model[0].router(x.view(-1, D)).experts)
    first = seen["0.router"]
    model(2 * x)
    assert seen["0.router"] is first
    moe.balance_loss(first).backward()
    assert model[0].router.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_active": 9}, "num_active: got 9, needs at most the 8 experts"),
        ({"num_active": 0}, "num_active: got 0"),
        ({"num_groups": 3}, "num_groups: got 3, needs a divisor of num_experts = 8"),
        ({"num_groups": 2, "active_groups": 3}, "active_groups: got 3, needs at most"),
        ({"num_groups": 4, "active_groups": 1}, "num_active: got 3, needs at most the 2"),
        ({"scores": "tanh"}, "scores: got 'tanh', needs one of"),
        ({"scaling": 0.0}, "scaling: got 0.0"),
        ({"num_shared": -1}, "num_shared: got -1"),
    ],
)
def test_what_no_such_layer_can_be_is_refused(options, message):
    arguments = {"num_experts": E, "num_active": K} | options
    with pytest.raises(ValueError, match=message):
        MixtureOfExperts(D, F, **arguments)


def test_quantiles_need_an_expert_that_is_not_chosen():
    with pytest.raises(ValueError, match="num_active: got 16, needs less than the 16 experts"):
        moe.quantile_step(skewed(4), torch.zeros(16), 16)


def test_situ_is_its_formula_bounded_and_swiglu_near_zero():
    gate, up = randn(200) * 50, randn(200, seed=1) * 200
    a, b = torch.tanh(gate / 4), torch.tanh(up / 25)
    assert error(situ(gate, up), 100 * a * b / (1 + (-gate).exp())) < 1e-12
    assert situ(gate, up).abs().max() <= 100
    assert situ(gate, up, 2.0, 3.0).abs().max() <= 6
    # tanh x is x - x^3 / 3: relative differences of (0.01 / 4)^2 / 3 and less
    assert error(situ(gate / 1e4, up / 1e4), swiglu(gate / 1e4, up / 1e4)) < 1e-5


@pytest.mark.parametrize(
    "layer", [SwiGLU, SiTUGLU, partial(SiTUGLU, beta=1.0, linear_beta=2.0)]
)
def test_gated_mlps_are_their_three_matrices(layer):
    mlp, x = shuffled(layer(D, F)), randn(2, 5, D)
    gate, up = x @ mlp.gate.weight.T, x @ mlp.up.weight.T
    if isinstance(mlp, SwiGLU):
        h = gate / (1 + (-gate).exp()) * up
    else:
        a, b = (4.0, 25.0) if layer is SiTUGLU else (1.0, 2.0)
        h = a * (gate / a).tanh() / (1 + (-gate).exp()) * b * (up / b).tanh()
    assert error(mlp(x), h @ mlp.down.weight.T) < 1e-12
    assert [*mlp.state_dict()] == ["gate.weight", "up.weight", "down.weight"]


@pytest.mark.parametrize("bounds", [{"beta": 0.0}, {"linear_beta": float("inf")}])
def test_the_bounds_of_situ_are_above_zero_and_finite(bounds):
    with pytest.raises(ValueError, match=r"beta: got .*, needs a finite number above 0"):
        SiTUGLU(D, F, **bounds)


@pytest.mark.parametrize("shape", [(0, D), (2, 0, D)])
@pytest.mark.parametrize("layer", [MixtureOfExperts(D, F, E, K), LatentMoE(D, 6, F, E, K)])
def test_no_tokens_are_no_work_and_no_error(layer, shape):
    x = torch.zeros(shape, requires_grad=True)
    y = layer(x)
    assert y.shape == shape
    y.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in layer.parameters())
