"""Grouped queries against PyTorch's attention, an equal layer with all heads, and the laws."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcourse.cache import LatentCache, RecurrentState
from llmcourse.layers.attention import GroupedQueryAttention, MultiHeadAttention

D, H, K = 24, 6, 5


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def randn(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def made(num_kv_heads, head_width=K):
    """The layer in float64 with no weight at its start."""
    layer = GroupedQueryAttention(D, H, num_kv_heads, head_width).double()
    with torch.no_grad():
        for i, p in enumerate(layer.parameters()):
            p.copy_(randn(*p.shape, seed=i) / 2)
    return layer


def gradients(y, *inputs):
    return torch.autograd.grad((y * randn(*y.shape, seed=9)).sum(), inputs)


@pytest.mark.parametrize("T", [1, 9])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, H])
def test_it_is_pytorchs_attention_with_gradients(num_kv_heads, T):
    layer, x = made(num_kv_heads), randn(2, T, D, seed=5).requires_grad_()
    q, k, v = (
        (x @ part.weight.T).unflatten(-1, (-1, K)).transpose(1, 2)
        for part in (layer.query, layer.key, layer.value)
    )
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = o.transpose(1, 2).flatten(2) @ layer.out.weight.T
    assert error(layer(x), expected) < 1e-12
    inputs = [x, *layer.parameters()]
    pairs = zip(gradients(layer(x), *inputs), gradients(expected, *inputs), strict=True)
    for a, b in pairs:
        assert (a - b).abs().max() < 1e-12 * max(1, b.abs().max())


@pytest.mark.parametrize("num_kv_heads", [1, 2, H])
def test_it_is_multi_head_attention_whose_groups_have_equal_keys(num_kv_heads):
    layer, x = made(num_kv_heads, D // H), randn(2, 9, D, seed=5)
    full = MultiHeadAttention(D, H).double()
    with torch.no_grad():
        k, v = (
            part.weight.unflatten(0, (num_kv_heads, -1)).repeat_interleave(
                H // num_kv_heads, dim=0
            )
            for part in (layer.key, layer.value)
        )
        full.qkv.weight.copy_(torch.cat([layer.query.weight, k.flatten(0, 1), v.flatten(0, 1)]))
        full.out.weight.copy_(layer.out.weight)
        full.qkv.bias.zero_()
        full.out.bias.zero_()
    assert error(layer(x), full(x)) < 1e-12


@pytest.mark.parametrize("num_kv_heads", [1, 2, H])
@given(cuts=st.sets(st.integers(1, 29)), T=st.integers(1, 30))
@settings(max_examples=10, deadline=None)
def test_any_pieces_with_a_memory_are_one_full_pass(num_kv_heads, cuts, T):
    layer, x = made(num_kv_heads), randn(2, T, D, seed=1)
    edges = [0, *sorted(c for c in cuts if c < T), T]
    memory = layer.new_memory(2)
    with torch.no_grad():
        pieces = [layer(x[:, a:b], memory) for a, b in itertools.pairwise(edges)]
        assert error(torch.cat(pieces, dim=1), layer(x)) < 1e-10
    assert memory.length == T
    assert memory.bytes == 2 * T * num_kv_heads * 2 * K * 8  # fewer heads, fewer bytes


def test_one_prompt_continued_in_several_ways():
    layer, x, ways = made(2), randn(2, 9, D, seed=2), randn(3, 5, D, seed=3)
    memory, parents = layer.new_memory(2), torch.tensor([1, 0, 1])
    with torch.no_grad():
        layer(x, memory)
        twin = memory.copy()
        twin.reorder(parents)
        steps = [layer(ways[:, t : t + 1], twin) for t in range(5)]
        expected = layer(torch.cat([x[parents], ways], dim=1))
    assert error(torch.cat(steps, dim=1), expected[:, 9:]) < 1e-10
    assert (memory.length, twin.length) == (9, 14)


@pytest.mark.parametrize(
    "sizes, message",
    [
        ((D, 6, 4), "num_kv_heads: got 4, needs a divisor of num_heads = 6"),
        ((D, 6, 0), "num_kv_heads: got 0"),
        ((D, 5, 5), "num_heads: got 5, needs a divisor of width = 24, or a head_width"),
        ((D, 6, 2, 0), "head_width: got 0"),
    ],
)
def test_heads_that_cannot_be_grouped_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        GroupedQueryAttention(*sizes)


@pytest.mark.parametrize("layer", [GroupedQueryAttention(D, 6, 2), MultiHeadAttention(D, 6)])
@pytest.mark.parametrize("memory", [RecurrentState(1, 6, 4, 4), LatentCache(1, 4, 4), "no"])
def test_another_kind_of_memory_is_refused(layer, memory):
    with pytest.raises(ValueError, match=f"memory: got {type(memory).__name__}, needs a KV"):
        layer(torch.zeros(1, 2, D), memory)
