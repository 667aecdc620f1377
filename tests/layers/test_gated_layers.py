"""Gated DeltaNet and Kimi Delta Attention against their formulas, public code, and their laws.

References: transformers' Qwen3-Next and Kimi Linear on random weights, and sublayers of a small
Kimi K3 recorded from an independent implementation (tests/golden/kimi_k3_tiny).
"""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import DynamicCache, KimiLinearConfig, Qwen3NextConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from llmcourse.cache import Cache, RecurrentState
from llmcourse.layers.gated import (
    DecayGate,
    HeadProjection,
    initial_rates,
    softplus,
    unit,
)
from llmcourse.layers.gated_delta_net import GatedDeltaNet
from llmcourse.layers.kda import KimiDeltaAttention

D, H = 24, 3
GOLDEN = Path(__file__).parents[1] / "golden" / "kimi_k3_tiny"
LAYERS = {
    "gated": lambda: GatedDeltaNet(D, H),
    "gated, convolved": lambda: GatedDeltaNet(
        D, H, key_width=5, value_width=7, conv_size=4, norm_eps=1e-3
    ),
    "kda": lambda: KimiDeltaAttention(D, H, 5, gate_rank=4, output_gate_rank=2),
    "kda, bounded": lambda: KimiDeltaAttention(
        D, H, 6, gate_rank=7, gate="bounded", norm_eps=1e-3
    ),
    "kda, another bound": lambda: KimiDeltaAttention(
        D, H, 6, gate_rank=7, gate="bounded", lower_bound=-2.0, conv_size=2
    ),
    "kda, alone": lambda: KimiDeltaAttention(D, H, 8, gate_rank=3, conv_size=None),
    "kda, a window of one": lambda: KimiDeltaAttention(D, H, 8, gate_rank=3, conv_size=1),
}
CONVOLVED = ["gated, convolved", "kda", "kda, bounded", "kda, another bound"]
MADE_OF = {  # a name in the released checkpoints: the name in the layer
    "q_proj.weight": "q.linear.weight",
    "k_proj.weight": "k.linear.weight",
    "v_proj.weight": "v.linear.weight",
    "q_conv1d.weight": "q.conv.weight",
    "k_conv1d.weight": "k.conv.weight",
    "v_conv1d.weight": "v.conv.weight",
    "A_log": "decay.A_log",
    "dt_bias": "decay.dt_bias",
    "f_a_proj.weight": "decay.project.0.weight",
    "f_b_proj.weight": "decay.project.1.weight",
    "b_proj.weight": "beta.weight",
    "g_proj.weight": "output_gate.weight",
    "g_a_proj.weight": "output_gate.0.weight",
    "g_b_proj.weight": "output_gate.1.weight",
    "o_norm.weight": "norm.weight",
    "o_proj.weight": "out.weight",
}


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def shuffled(module, size=0.5):
    """The module with no weight at its start."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(size * randn(*p.shape, seed=i))
    return module


def made(name):
    return shuffled(LAYERS[name]().double())


def gradients(y, *inputs):
    return torch.autograd.grad((y * randn(*y.shape, seed=9, dtype=y.dtype)).sum(), inputs)


def sigmoid(x):
    return 1 / (1 + (-x).exp())


def heads(projection, x):
    y = x @ projection.linear.weight.T
    if projection.conv is not None:
        weight = projection.conv.weight
        past = F.pad(y.mT, (weight.shape[1] - 1, 0))
        y = F.conv1d(past, weight[:, None], groups=y.shape[-1]).mT
    return (y * sigmoid(y)).unflatten(-1, (H, -1))


def product(x, module):
    """x times a matrix, or two of them one after the other."""
    for part in module if isinstance(module, torch.nn.Sequential) else [module]:
        x = x @ part.weight.T
    return x


def by_formula(layer, x):
    """The docstrings' equations, one token after another."""
    gate, kda = layer.decay, isinstance(layer, KimiDeltaAttention)
    q, k, v = (heads(p, x) for p in (layer.q, layer.k, layer.v))
    K, V = k.shape[-1], v.shape[-1]
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    f = (product(x, gate.project) + gate.dt_bias).unflatten(-1, (H, -1))
    a = gate.A_log.exp()[:, None]
    bound = gate.lower_bound
    g = -a * (1 + f.exp()).log() if bound is None else bound * sigmoid(a * f)
    beta = sigmoid(product(x, layer.beta))
    S, outputs = x.new_zeros(x.shape[0], H, K, V), []
    for t in range(x.shape[1]):
        S = g[:, t].exp().expand(-1, -1, K)[..., None] * S
        held = torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        write = beta[:, t, :, None] * (v[:, t] - held)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], write)
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) / K**0.5)
    o = torch.stack(outputs, 1)
    o = o / (o.square().mean(-1, keepdim=True) + layer.norm.eps).sqrt() * layer.norm.weight
    y = product(x, layer.output_gate)
    return (o.flatten(2) * (sigmoid(y) if kda else y * sigmoid(y))) @ layer.out.weight.T


@pytest.mark.parametrize("T", [1, 2, 71])
@pytest.mark.parametrize("name", LAYERS)
def test_a_gated_layer_is_its_formula_with_gradients(name, T):
    layer, x = made(name), randn(2, T, D, seed=50).requires_grad_()
    got, expected = layer(x), by_formula(layer, x)
    assert error(got, expected) < 1e-10
    inputs = [x, *layer.parameters()]
    pairs = zip(gradients(got, *inputs), gradients(expected, *inputs), strict=True)
    for (a, b), p in zip(pairs, ["x", *dict(layer.named_parameters())], strict=True):
        assert error(a, b) < 1e-9 or b.abs().max() < 1e-12, p
        assert T == 1 or b.abs().max() > 0, f"no gradient reaches {p}"


@given(cuts=st.sets(st.integers(1, 99)), T=st.integers(1, 100))
@settings(max_examples=8, deadline=None)
@pytest.mark.parametrize("name", LAYERS)
def test_any_pieces_with_its_memory_are_one_full_pass(name, cuts, T):
    layer, x = made(name), randn(2, T, D, seed=1)
    edges = [0, *sorted(c for c in cuts if c < T), T]
    memory = layer.new_memory(2)
    size = memory.bytes
    with torch.no_grad():
        full = layer(x)
        pieces = [layer(x[:, a:b], memory) for a, b in itertools.pairwise(edges)]
    assert error(torch.cat(pieces, dim=1), full) < 1e-10
    assert {part.length for part in memory} == {memory.length} == {T}
    assert memory.bytes == size


@pytest.mark.parametrize("name", LAYERS)
def test_one_token_after_another_is_one_full_pass(name):
    layer, x = made(name), randn(3, 70, D)
    memory = layer.new_memory(3)
    with torch.no_grad():
        steps = [layer(x[:, t : t + 1], memory) for t in range(70)]
        assert error(torch.cat(steps, dim=1), layer(x)) < 1e-10


@pytest.mark.parametrize("name", LAYERS)
def test_its_memory_can_be_reordered_and_copied(name):
    layer, x, more = made(name), randn(2, 9, D), randn(3, 4, D, seed=1)
    memory, index = layer.new_memory(2), torch.tensor([1, 0, 1])
    with torch.no_grad():
        layer(x, memory)
        twin = memory.copy()
        twin.reorder(index)
        expected = layer(torch.cat([x[index], more], dim=1))[:, 9:]
        assert error(layer(more, twin), expected) < 1e-10
        assert (memory.length, twin.length) == (9, 13)
        expected = layer(torch.cat([x, more[:2]], dim=1))[:, 9:]
        assert error(layer(more[:2], memory), expected) < 1e-10  # it felt nothing of its twin


@pytest.mark.parametrize("name", LAYERS)
def test_what_follows_does_not_change_what_a_gated_layer_said(name):
    layer, x = made(name), randn(1, 80, D)
    for t in (1, 40, 79):
        assert error(layer(x[:, :t]), layer(x)[:, :t]) < 1e-10


@pytest.mark.parametrize("name", LAYERS)
def test_bytes_are_those_of_the_windows_and_the_page(name):
    layer = LAYERS[name]()
    q, v = layer.q.linear.out_features, layer.v.linear.out_features
    W = 1 if layer.q.conv is None else layer.q.conv.weight.shape[1]
    numbers = (W - 1) * (2 * q + v) + q * v // H
    assert layer.new_memory(5).bytes == 5 * 4 * numbers
    assert layer.double().new_memory(5).bytes == 5 * 8 * numbers


@pytest.mark.parametrize("name", CONVOLVED)
def test_another_memory_is_refused_before_any_part_of_it_changes(name):
    layer, x = made(name), randn(2, 3, D)
    *windows, page = layer.new_memory(2)
    wrong = [
        (layer.new_memory(1), r"memory: got \[1, "),
        (Cache([*windows, RecurrentState(2, H, 4, 9)]), r"memory: got \[2, 3, 4, 9\]"),
        (Cache([page, *windows]), r"memory: got \[2, 3, "),
        (Cache(windows), "memory: got 3 parts, needs a Cache of 4 states"),
        (page, "memory: got RecurrentState, needs a Cache of 4 states"),
    ]
    for memory, message in wrong:
        with pytest.raises(ValueError, match=message):
            layer(x, memory)
        assert all(m.length == 0 for m in (memory, page, *windows))


@pytest.mark.parametrize("name", LAYERS)
def test_low_precision_rounds_the_matrices_alone(name):
    # The rule, the norms and the gates compute in float32; what is left is bfloat16's 2^-8,
    # met in a few matrices one after another.
    layer = made(name).bfloat16()
    x = randn(2, 70, D).bfloat16()
    memory, exact = layer.new_memory(2), LAYERS[name]().double()
    exact.load_state_dict({n: p.double() for n, p in layer.state_dict().items()})
    with torch.no_grad():
        y = layer(x, memory)
        assert y.dtype == torch.bfloat16
        assert memory[-1].state.dtype == torch.float32
        assert error(y.double(), exact(x.double())) < 0.06
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = exact.float()(x.float())
        assert error(y.double(), exact.double()(x.double())) < 0.06


@pytest.mark.parametrize("name", LAYERS)
def test_a_new_layer_forgets_slowly_and_its_heads_differ(name):
    torch.manual_seed(0)
    gate = LAYERS[name]().decay
    g = gate(torch.zeros(1, 1, D)).flatten()
    assert len(g.unique()) == len(g) and (g < 0).all()
    fastest = -0.1 * 16 if gate.lower_bound is None else -0.1
    assert fastest * 1.001 <= g.min() and g.max() <= -1e-3 * 0.999


def test_a_bound_near_zero_can_be_started_from():
    gate = DecayGate(torch.nn.Identity(), 2, 500, lower_bound=-0.01)
    g = gate(torch.zeros(1, 1000))
    assert g.min() > -0.00901 and g.max() < 0


def test_initial_rates_spread_over_orders_of_magnitude():
    torch.manual_seed(0)
    rates = initial_rates(10_000)
    assert rates.min() >= 1e-3 and rates.max() <= 1e-1
    # Half of them lie below 0.01; three standard deviations of the share are 0.015.
    assert (rates < 1e-2).double().mean().item() == pytest.approx(0.5, abs=0.015)


@pytest.mark.parametrize("size", [1, 1e3])
def test_the_bounded_gate_stays_in_its_bounds(size):
    gate = shuffled(DecayGate(torch.nn.Identity(), 2, 4, lower_bound=-5.0), size)
    with torch.no_grad():
        gate.A_log.clamp_(max=80)  # e^88 is the end of float32
        g = gate(size * randn(9, 8, dtype=torch.float32))
    assert g.shape == (9, 2, 4) and (g >= -5).all() and (g <= 0).all()


def test_the_two_gates_are_different_functions():
    free = shuffled(DecayGate(torch.nn.Identity(), 2, 4))
    bounded = shuffled(DecayGate(torch.nn.Identity(), 2, 4, lower_bound=-5.0))
    x = 4 * randn(50, 8, dtype=torch.float32)
    assert (free(x).clamp(min=-5) - bounded(x)).abs().max() > 1


def test_unit_vectors_have_length_one_and_zero_stays_zero_with_its_gradient():
    x = 10 * randn(7, 9)
    assert error(unit(x).norm(dim=-1), torch.ones(7, dtype=x.dtype)) < 1e-6
    zero = torch.zeros(2, 9, requires_grad=True)
    assert not unit(zero).any()
    assert unit(x.bfloat16()).dtype == torch.float32
    assert torch.allclose(*gradients(unit(zero), zero), 1e3 * randn(2, 9, seed=9).float())


def test_projection_without_a_convolution_sees_one_token():
    x = randn(2, 6, D, dtype=torch.float32)
    alone = HeadProjection(D, H, 5, None)
    assert error(alone(x)[:, 3:4], alone(x[:, 3:4])) < 1e-6
    beside = HeadProjection(D, H, 5, 4)
    assert error(beside(x)[:, 3:4], beside(x[:, 3:4])) > 0.1


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GatedDeltaNet(D, 5), "num_heads: got 5, needs a divisor of width = 24"),
        (lambda: GatedDeltaNet(D, 5, key_width=8), "num_heads: got 5"),
        (lambda: GatedDeltaNet(D, 3, key_width=0), "key_width: got 0"),
        (lambda: GatedDeltaNet(D, 3, value_width=1.5), "value_width: got 1.5"),
        (lambda: GatedDeltaNet(D, 3, conv_size=0), "size: got 0"),
        (lambda: KimiDeltaAttention(D, 0, 8, gate_rank=2), "num_heads: got 0"),
        (lambda: KimiDeltaAttention(D, 3, 8.0, gate_rank=2), "head_width: got 8.0"),
        (lambda: KimiDeltaAttention(D, 3, 8, gate_rank=0), "gate_rank: got 0"),
        (
            lambda: KimiDeltaAttention(D, 3, 8, gate_rank=2, output_gate_rank=0),
            "output_gate_rank: got 0",
        ),
        (
            lambda: KimiDeltaAttention(D, 3, 8, gate_rank=2, gate="clamped"),
            r"gate: got 'clamped', needs one of \('softplus', 'bounded'\)",
        ),
        (
            lambda: KimiDeltaAttention(D, 3, 8, gate_rank=2, gate="bounded", lower_bound=5.0),
            "lower_bound: got 5.0, needs a finite number below 0",
        ),
        (
            lambda: KimiDeltaAttention(
                D, 3, 8, gate_rank=2, gate="bounded", lower_bound=-float("inf")
            ),
            "lower_bound: got -inf",
        ),
    ],
)
def test_a_layer_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_layer_of_kimi_k3_in_its_real_size_is_built_without_memory_for_it():
    with torch.device("meta"):
        layer = KimiDeltaAttention(7168, 96, 128, gate_rank=128, gate="bounded")
    inner = (
        96 * 128
    )  # q, k, v, output gate and out; f; convolutions, dt_bias; beta, A_log; norm
    expected = 5 * 7168 * inner + 128 * (7168 + inner) + 13 * inner + 96 * (7168 + 1) + 128
    assert sum(p.numel() for p in layer.parameters()) == expected
    assert layer.new_memory().bytes == 4 * (3 * 3 * inner + 96 * 128 * 128)


def loaded(layer, weights):
    """The layer with these weights: all of them, no more, no less."""
    ours = layer.state_dict()
    layer.load_state_dict({n: w.reshape(ours[n].shape) for n, w in weights.items()})
    return layer


def golden(i):
    """K3's KDA layer i with its recorded input and output; K3's form: bounded, full gate."""
    prefix = f"language_model.model.layers.{i}.self_attn."
    weights = load_file(GOLDEN / "model.safetensors")
    own = {
        MADE_OF[n.removeprefix(prefix)]: w for n, w in weights.items() if n.startswith(prefix)
    }
    layer = loaded(KimiDeltaAttention(40, 5, 8, gate_rank=8, gate="bounded"), own)
    recorded = load_file(GOLDEN / "io.safetensors")
    return layer, *(recorded[f"layers.{i}.self_attn.{end}"] for end in ("in", "out"))


@pytest.mark.parametrize("i", [0, 1])
@torch.no_grad()
def test_a_recorded_sublayer_of_kimi_k3_is_met(i):
    layer, x, expected = golden(i)
    assert error(layer(x), expected) < 1e-5  # the line of the recording, of the largest value
    memory = layer.new_memory(2)
    steps = [layer(piece, memory) for piece in x.split([40, *[1] * 35], dim=1)]
    assert error(torch.cat(steps, dim=1), expected) < 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {"lower_bound": -4.0},
        {"gate": "softplus"},
        {"norm_eps": 1e-2},
    ],
)
@torch.no_grad()
def test_the_recording_tells_a_wrong_layer_from_the_right_one(change):
    layer, x, expected = golden(1)
    form = {"gate_rank": 8, "gate": "bounded"} | change
    wrong = KimiDeltaAttention(40, 5, 8, **form)
    wrong.load_state_dict(layer.state_dict())
    assert error(wrong(x), expected) > 0.1


def kimi_linear():
    """A KDA layer of transformers, its configuration, and ours with fresh weights."""
    config = KimiLinearConfig(
        hidden_size=D,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_heads=H,
        linear_head_dim=6,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-5,
    )
    ours = KimiDeltaAttention(D, H, 6, gate_rank=6, output_gate_rank=6)
    return KimiLinearDeltaAttention(config, 0), config, ours


def from_kimi_linear(w):
    """Weights (or their gradients) of transformers' layer under our names."""
    w = {n.removeprefix("forget_gate."): x for n, x in w.items()}
    convs = w.pop("conv1d.weight").chunk(3)
    w |= {f"{n}_conv1d.weight": x for n, x in zip("qkv", convs, strict=True)}
    return {MADE_OF[n]: x for n, x in w.items()}


def qwen_next():
    """A gated delta net of transformers, its configuration, and ours with fresh weights."""
    config = Qwen3NextConfig(
        hidden_size=D,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=H,
        linear_num_key_heads=H,
        linear_key_head_dim=5,
        linear_value_head_dim=7,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
    )
    ours = GatedDeltaNet(D, H, key_width=5, value_width=7, conv_size=4, norm_eps=1e-6)
    return Qwen3NextGatedDeltaNet(config, 0), config, ours


def from_qwen_next(w):
    """Theirs keeps q, k, v and output gate of a head together; beta and decay likewise."""
    q, k, v, gate = w["in_proj_qkvz.weight"].unflatten(0, (H, -1)).split([5, 5, 7, 7], dim=1)
    beta, decay = w["in_proj_ba.weight"].unflatten(0, (H, 2)).unbind(1)
    convs = w["conv1d.weight"].split([H * 5, H * 5, H * 7])
    named = {
        f"{n}.linear.weight": x.flatten(0, 1) for n, x in zip("qkv", (q, k, v), strict=True)
    }
    named |= {f"{n}.conv.weight": x for n, x in zip("qkv", convs, strict=True)}
    return named | {
        "output_gate.weight": gate.flatten(0, 1),
        "beta.weight": beta,
        "decay.project.weight": decay,
        "decay.A_log": w["A_log"],
        "decay.dt_bias": w["dt_bias"],
        "norm.weight": w["norm.weight"],
        "out.weight": w["out_proj.weight"],
    }


PEERS = {
    "Kimi Linear": (kimi_linear, from_kimi_linear),
    "Qwen3-Next": (qwen_next, from_qwen_next),
}
PEER_TOLERANCE = 2e-5  # both compute in float32 in another order; measured: up to 6e-6


def pair(peer):
    """Theirs with random weights, ours with the same, the configuration, the renaming."""
    make, renamed = PEERS[peer]
    theirs, config, ours = make()
    return shuffled(theirs), loaded(ours, renamed(theirs.state_dict())), config, renamed


@pytest.mark.parametrize("T", [1, 5, 75])
@pytest.mark.parametrize("peer", PEERS)
def test_outputs_and_every_gradient_are_those_of_transformers(peer, T):
    theirs, ours, _, renamed = pair(peer)
    x = randn(2, T, D, seed=7, dtype=torch.float32).requires_grad_()
    named = dict(theirs.named_parameters()), dict(ours.named_parameters())
    expected, got = theirs(x), ours(x)
    assert error(got, expected) < PEER_TOLERANCE
    x_theirs, *theirs_by_name = gradients(expected, x, *named[0].values())
    x_ours, *ours_by_name = gradients(got, x, *named[1].values())
    assert error(x_ours, x_theirs) < PEER_TOLERANCE
    wanted = renamed(dict(zip(named[0], theirs_by_name, strict=True)))
    for name, mine in zip(named[1], ours_by_name, strict=True):
        their = wanted.pop(name).reshape(mine.shape)
        forgets = name.startswith("decay")  # the first token has nothing to forget
        assert error(mine, their) < PEER_TOLERANCE or (T == 1 and forgets), name
    assert not wanted


@pytest.mark.parametrize("peer", PEERS)
@torch.no_grad()
def test_decoding_and_its_state_are_those_of_transformers(peer):
    theirs, ours, config, _ = pair(peer)
    x = randn(2, 75, D, seed=8, dtype=torch.float32)
    cache, memory = DynamicCache(config=config), ours.new_memory(2)
    for piece in x.split([70, *[1] * 5], dim=1):
        assert error(ours(piece, memory), theirs(piece, cache=cache)) < PEER_TOLERANCE
    page = cache.layers[0].recurrent_states[0]
    assert error(memory[-1].state, page) < PEER_TOLERANCE


@pytest.mark.parametrize("name", ["gated", "kda"])
def test_a_compiled_layer_trains_as_the_plain_one(name):
    layer, x = shuffled(LAYERS[name]().double()), randn(2, 3, D)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    got, expected = (
        torch.autograd.grad(run(x).square().sum(), list(layer.parameters()))
        for run in (compiled, layer)
    )
    assert all(error(a, b) < 1e-10 for a, b in zip(got, expected, strict=True))


def test_the_softplus_of_the_gate_is_pytorchs_also_far_from_0():
    x = torch.tensor([-800.0, -30, -1, 0, 1, 19, 21, 800], dtype=torch.float64)
    x.requires_grad_()
    torch.testing.assert_close(softplus(x), F.softplus(x, threshold=50), rtol=1e-14, atol=0)
    got, expected = (torch.autograd.grad(f(x).sum(), x)[0] for f in (softplus, F.softplus))
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-300)
