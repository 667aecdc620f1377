"""The layers with a memory of one size, against their formulas written out, and their laws."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcourse.cache import KVCache, RecurrentState
from llmcourse.layers.conv import ShortConvolution
from llmcourse.layers.delta_net import DeltaNet
from llmcourse.layers.linear_attention import LinearAttention, feature_map
from llmcourse.layers.norm import RMSNorm

D, H = 24, 3
LAYERS = {
    "linear": lambda: LinearAttention(D, H),
    "linear, normalised": lambda: LinearAttention(D, H, normalise=True),
    "delta": lambda: DeltaNet(D, H),
    "delta, beta to 2": lambda: DeltaNet(D, H, negative_eigenvalues=True),
    "convolution": lambda: ShortConvolution(D, 4),
    "convolution of one": lambda: ShortConvolution(D, 1),
}


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def randn(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def made(name, seed=0):
    """The layer in float64 with no weight at its start."""
    layer = LAYERS[name]().double()
    with torch.no_grad():
        for i, p in enumerate(layer.parameters()):
            p.copy_(randn(*p.shape, seed=seed + i) / 2)
    return layer


def outer(a, b):
    return torch.einsum("bhk,bhv->bhkv", a, b)


def read(S, q):
    return torch.einsum("bhk,bhkv->bhv", q, S)


def projected(layer, x):
    """W x of q, k and v by their rows in the weight, each [B, T, H, D / H]."""
    return [(x @ W.T).unflatten(-1, (H, D // H)) for W in layer.qkv.weight.split(D)]


def finish(layer, outputs):
    """RMSNorm written out, for each head, and the last matrix."""
    o = torch.stack(outputs, 1)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.norm.weight
    return o.flatten(2) @ layer.out.weight.T


def linear_by_formula(layer, x):
    q, k, v = projected(layer, x)
    phi = [torch.where(y > 0, y + 1, y.exp()) for y in (q, k)]
    S, z, outputs = 0, 0, []
    for t in range(x.shape[1]):
        S, z = S + outer(phi[1][:, t], v[:, t]), z + phi[1][:, t]
        o = read(S, phi[0][:, t])
        if layer.normalise:
            o = o / (phi[0][:, t] * z).sum(-1, keepdim=True)
        outputs.append(o)
    return finish(layer, outputs)


def delta_by_formula(layer, x):
    q, k, v = (y / (1 + (-y).exp()) for y in projected(layer, x))
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
    beta = (2 if layer.negative_eigenvalues else 1) / (1 + (-x @ layer.beta.weight.T).exp())
    S, outputs = x.new_zeros(x.shape[0], H, D // H, D // H), []
    one = torch.eye(D // H, dtype=x.dtype)
    for t in range(x.shape[1]):
        b = beta[:, t, :, None, None]
        # (I - beta k k^T) S + beta k v^T
        S = (one - b * outer(k[:, t], k[:, t])) @ S + b * outer(k[:, t], v[:, t])
        outputs.append(read(S, q[:, t]))
    return finish(layer, outputs)


def convolution_by_formula(layer, x):
    W = layer.weight.shape[1]
    theirs = F.conv1d(F.pad(x.mT, (W - 1, 0)), layer.weight[:, None], groups=D)
    return theirs.mT


def by_formula(name, layer, x):
    kinds = {"l": linear_by_formula, "d": delta_by_formula, "c": convolution_by_formula}
    return kinds[name[0]](layer, x)


@pytest.mark.parametrize("T", [1, 2, 71])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_formula_with_gradients(name, T):
    layer, x = made(name), randn(2, T, D, seed=5).requires_grad_()
    expected = by_formula(name, layer, x)
    got = layer(x)
    assert error(got, expected) < 1e-10
    inputs, weights = [x, *layer.parameters()], randn(2, T, D, seed=6)
    pairs = zip(
        torch.autograd.grad((got * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    )
    for (a, b), p in zip(pairs, ["x", *dict(layer.named_parameters())], strict=True):
        assert error(a, b) < 1e-9 or b.abs().max() < 1e-12, p
        assert T == 1 or b.abs().max() > 0, f"no gradient reaches {p}"


@given(cuts=st.sets(st.integers(1, 99)), T=st.integers(1, 100))
@settings(max_examples=10, deadline=None)
@pytest.mark.parametrize("name", LAYERS)
def test_any_pieces_with_a_memory_are_one_full_pass(name, cuts, T):
    layer, x = made(name), randn(2, T, D, seed=1)
    edges = [0, *sorted(c for c in cuts if c < T), T]
    memory = layer.new_memory(2)
    size = memory.bytes
    with torch.no_grad():
        full = layer(x)
        pieces = [layer(x[:, a:b], memory) for a, b in itertools.pairwise(edges)]
    assert error(torch.cat(pieces, dim=1), full) < 1e-10
    assert (memory.length, memory.bytes) == (T, size)


@pytest.mark.parametrize("name", LAYERS)
def test_what_follows_does_not_change_what_was_said(name):
    layer, x = made(name), randn(1, 80, D)
    for t in (1, 40, 79):
        assert error(layer(x[:, :t]), layer(x)[:, :t]) < 1e-10


@pytest.mark.parametrize("name", LAYERS)
def test_a_memory_is_kept_in_the_precision_of_the_computation(name):
    layer, x = LAYERS[name](), randn(2, 3, D)
    for dtype, kept in [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]:
        layer, memory = layer.to(dtype), layer.to(dtype).new_memory(2)
        assert memory.state.dtype == kept
        y = layer(x.to(dtype), memory)
        assert (y.dtype, memory.state.dtype) == (dtype, kept)


@pytest.mark.parametrize("name", [n for n in LAYERS if n != "convolution of one"])
def test_another_memory_is_refused_and_left_alone(name):
    layer, x = made(name), randn(2, 3, D)
    wrong = [
        (layer.new_memory(1), r"memory: got \[1, "),
        (RecurrentState(2, 5), r"memory: got \[2, 5\], needs a RecurrentState \[2, "),
        (KVCache(2, H, 8, 8, capacity=9), "memory: got KVCache"),
        ("page", "memory: got str"),
    ]
    for memory, message in wrong:
        with pytest.raises(ValueError, match=message):
            layer(x, memory)
        assert getattr(memory, "length", 0) == 0


@pytest.mark.parametrize("layer", [LinearAttention, DeltaNet])
def test_number_of_heads_must_divide_the_width(layer):
    with pytest.raises(ValueError, match="num_heads: got 5, needs a divisor of width = 24"):
        layer(D, 5)


def test_a_convolution_sees_at_least_one_token():
    with pytest.raises(ValueError, match="size: got 0"):
        ShortConvolution(D, 0)


def test_the_feature_map_is_elu_plus_one_and_positive():
    x = torch.linspace(-20, 20, 401, dtype=torch.float64, requires_grad=True)
    assert error(feature_map(x), torch.where(x > 0, x + 1, x.exp())) < 1e-12
    assert (feature_map(x) > 0).all()


def test_normalised_linear_attention_reads_a_weighted_mean():
    layer = made("linear, normalised")
    x = randn(1, 1, D).expand(1, 30, D)  # tokens all alike: their mean is each of them
    assert error(layer(x), layer(x[:, :1]).expand(1, 30, D)) < 1e-10


@pytest.mark.parametrize("factor", [1, 2])
def test_delta_writes_strongly_enough_to_turn_a_value_around_only_when_allowed(factor):
    layer = made("delta, beta to 2" if factor == 2 else "delta")
    with torch.no_grad():
        layer.beta.weight.copy_(1e3 * randn(H, D))
        *_, beta = layer.project(randn(4, 50, D, seed=2))
    assert beta.min() >= 0 and beta.max() == pytest.approx(factor)


def test_keys_and_queries_of_delta_have_unit_length():
    q, k, v, _ = made("delta").project(randn(2, 9, D))
    for x in (q, k):
        assert error(x.norm(dim=-1), torch.ones(2, 9, H, dtype=x.dtype)) < 1e-12
    assert v.norm(dim=-1).std() > 0.1


def test_rms_norm_equals_pytorch_with_gradients():
    norm, x = RMSNorm(D, eps=1e-3).double(), randn(2, 5, D).requires_grad_()
    with torch.no_grad():
        norm.weight.copy_(randn(D, seed=3))
    theirs = F.rms_norm(x, (D,), norm.weight, eps=1e-3)
    assert error(norm(x), theirs) < 1e-12
    inputs, w = (x, norm.weight), randn(2, 5, D, seed=4)
    pairs = [torch.autograd.grad((y * w).sum(), inputs) for y in (norm(x), theirs)]
    for a, b in zip(*pairs, strict=True):
        assert error(a, b) < 1e-12


def test_rms_norm_computes_in_float32_and_keeps_the_dtype():
    norm, x = RMSNorm(D), (randn(4, D) + 300).bfloat16()
    assert norm(x).dtype == torch.bfloat16
    assert torch.equal(norm(x), norm(x.float()).bfloat16())
    assert torch.equal(norm(torch.zeros(2, D)), torch.zeros(2, D))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_feature_map_is_positive_where_elu_rounds_to_minus_one(dtype):
    x = torch.tensor([-80.0, -40.0, -20.0, 0.0, 3.0], dtype=dtype, requires_grad=True)
    y = feature_map(x)
    assert torch.equal(y, torch.where(x > 0, x + 1, x.exp())) and (y > 0).all()
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(slope, torch.where(x > 0, 1.0, x.exp()))


@pytest.mark.parametrize("num_heads", [0, -3, 3.0, True, 5])
@pytest.mark.parametrize("layer", [LinearAttention, DeltaNet])
def test_heads_that_do_not_divide_the_width_are_refused(layer, num_heads):
    with pytest.raises(ValueError, match="num_heads: got"):
        layer(12, num_heads)
