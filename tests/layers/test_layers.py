"""The parts of a block against PyTorch's own, and their laws."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from llmcourse.layers.attention import MultiHeadAttention
from llmcourse.layers.mlp import MLP, gelu
from llmcourse.layers.norm import LayerNorm

D = 24


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def randn(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def shuffled(module, seed=0):
    """The module in float64 with no weight at its start."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(randn(*p.shape, seed=seed + i) / 3)
    return module


def gradients(y, *inputs):
    return torch.autograd.grad((y * randn(*y.shape, seed=9)).sum(), inputs)


def test_layer_norm_equals_pytorch_with_gradients():
    norm, x = shuffled(LayerNorm(D, eps=1e-3)), randn(2, 5, D).requires_grad_()
    theirs = F.layer_norm(x, (D,), norm.weight, norm.bias, eps=1e-3)
    assert error(norm(x), theirs) < 1e-12
    inputs = (x, norm.weight, norm.bias)
    for a, b in zip(gradients(norm(x), *inputs), gradients(theirs, *inputs), strict=True):
        assert error(a, b) < 1e-12


@given(shift=st.floats(-50, 50), factor=st.floats(0.1, 50))
@settings(max_examples=20, deadline=None)
def test_layer_norm_ignores_shift_and_size(shift, factor):
    norm, x = LayerNorm(D, eps=1e-12).double(), randn(3, D)
    assert error(norm(shift + factor * x), norm(x)) < 1e-8


def test_layer_norm_of_a_constant_vector_is_its_bias():
    norm = shuffled(LayerNorm(D))
    assert torch.equal(norm(torch.full((D,), 7.0, dtype=torch.float64)), norm.bias)


def test_layer_norm_computes_in_float32_and_keeps_the_dtype():
    norm, x = LayerNorm(D), (randn(4, D) + 300).bfloat16()
    assert norm(x).dtype == torch.bfloat16
    assert torch.equal(norm(x), norm(x.float()).bfloat16())


def test_gelu_equals_pytorch_tanh_form_with_gradients():
    x = torch.linspace(-8, 8, 401, dtype=torch.float64, requires_grad=True)
    theirs = F.gelu(x, approximate="tanh")
    assert error(gelu(x), theirs) < 1e-12
    assert error(*gradients(gelu(x), x), *gradients(theirs, x)) < 1e-12


def test_mlp_is_two_linear_maps_around_gelu():
    mlp, x = shuffled(MLP(D)), randn(2, 5, D)
    middle = F.gelu(x @ mlp.up.weight.T + mlp.up.bias, approximate="tanh")
    assert middle.shape == (2, 5, 4 * D)
    assert error(mlp(x), middle @ mlp.down.weight.T + mlp.down.bias) < 1e-12


def test_mlp_treats_each_token_alone():
    mlp, x = shuffled(MLP(D, hidden=7)), randn(1, 6, D)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert error(mlp(x[:, order]), mlp(x)[:, order]) < 1e-12


@pytest.mark.parametrize("num_heads", [1, 4, D])
@pytest.mark.parametrize("T", [1, 9])
def test_attention_equals_pytorch_multihead_attention_with_gradients(num_heads, T):
    ours = shuffled(MultiHeadAttention(D, num_heads))
    theirs = nn.MultiheadAttention(D, num_heads, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight, theirs.in_proj_bias = ours.qkv.weight, ours.qkv.bias
    theirs.out_proj.weight, theirs.out_proj.bias = ours.out.weight, ours.out.bias
    x = randn(2, T, D).requires_grad_()
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
    assert error(ours(x), expected) < 1e-12
    inputs = (x, ours.out.weight, ours.qkv.weight)
    for a, b in zip(gradients(ours(x), *inputs), gradients(expected, *inputs), strict=True):
        assert error(a, b) < 1e-12


@given(T=st.integers(2, 10), t=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_attention_is_causal_a_prefix_does_not_feel_what_follows(T, t):
    attention, x = shuffled(MultiHeadAttention(D, 3)), randn(1, T, D)
    t = min(t, T - 1)
    assert error(attention(x)[:, :t], attention(x[:, :t])) < 1e-12


def test_number_of_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="num_heads: got 5, needs a divisor of width = 24"):
        MultiHeadAttention(D, 5)
