"""One trunk, any memory: a model like any other, whatever remembers in it."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcourse.cache import RecurrentState
from llmcourse.generate import generate
from llmcourse.models import OneMemory, OneMemoryConfig
from llmcourse.models.one_memory import MEMORIES, Block
from llmcourse.train import TrainConfig, train

KINDS = [*MEMORIES]


def config(kind, **changes):
    size = {"vocab_size": 31, "width": 16, "num_layers": 2, "num_heads": 2, "mlp_ratio": 2}
    return OneMemoryConfig(kind, **(size | changes))


def made(kind, dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = OneMemory(config(kind, **changes)).to(dtype)
    with torch.no_grad():
        model.token_embedding.weight.mul_(30)  # logits that differ
    return model


def some_ids(B=2, T=13, seed=0, vocab_size=31):
    return torch.randint(vocab_size, (B, T), generator=torch.Generator().manual_seed(seed))


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


@given(cuts=st.sets(st.integers(1, 89)), T=st.integers(1, 90))
@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_any_pieces_with_a_cache_give_the_logits_of_one_full_pass(
    dtype, tolerance, kind, cuts, T
):
    # float32: a rounding is 1e-7, and a norm after each memory divides by small outputs.
    model, ids = made(kind, dtype), some_ids(2, T)
    edges = [0, *sorted(cut for cut in cuts if cut < T), T]
    cache = model.new_cache(batch=2)
    with torch.no_grad():
        full = model(ids)
        pieces = [model(ids[:, a:b], cache) for a, b in itertools.pairwise(edges)]
    assert cache.length == T
    assert error(torch.cat(pieces, dim=1), full) < tolerance


@pytest.mark.parametrize("kind", KINDS)
def test_token_by_token_is_one_full_pass(kind):
    model, ids = made(kind), some_ids(3, 70)
    cache = model.new_cache(3)
    with torch.no_grad():
        steps = [model(ids[:, t : t + 1], cache) for t in range(70)]
        assert error(torch.cat(steps, dim=1), model(ids)) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_it_generates_the_same_with_and_without_a_cache(kind):
    model, ids = made(kind), some_ids(3, 5)
    with_cache, without = (
        generate(model, ids, 20, seed=1, use_cache=use) for use in (True, False)
    )
    assert with_cache.shape == (3, 25) and torch.equal(with_cache, without)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_of_a_prefix_do_not_feel_what_follows(kind):
    model, ids = made(kind), some_ids(1, 80)
    for t in (1, 33, 79):
        assert error(model(ids[:, :t]), model(ids)[:, :t]) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_every_part_is_trained(kind):
    model = made(kind)
    model(some_ids()).square().sum().backward()
    for name, p in model.named_parameters():
        if kind == "softmax" and name.endswith("qkv.bias"):  # scores ignore the keys' bias
            continue
        assert p.grad is not None and p.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_can_be_reordered_and_copied(kind):
    model, ids = made(kind), some_ids(2, 9)
    cache, more = model.new_cache(2), some_ids(3, 4, seed=1)
    index = torch.tensor([1, 0, 1])
    with torch.no_grad():
        model(ids, cache)
        twin = cache.copy()
        twin.reorder(index)
        got = model(more, twin)
        expected = model(torch.cat([ids[index], more], dim=1))[:, 9:]
        assert error(got, expected) < 1e-10
        assert (cache.length, twin.length) == (9, 13)
        after = model(more[:2], cache)  # the original felt nothing of it
        assert error(after, model(torch.cat([ids, more[:2]], dim=1))[:, 9:]) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_a_batch_do_not_feel_each_other(kind):
    model, ids = made(kind), some_ids(3, 9)
    for row in range(3):
        assert error(model(ids)[row : row + 1], model(ids[row : row + 1])) < 1e-10


@pytest.mark.parametrize("kind", KINDS)
def test_only_softmax_remembers_more_after_more_tokens(kind):
    model = made(kind, torch.float32)
    cache, sizes = model.new_cache(), []
    with torch.no_grad():
        for T in (5, 20, 75):
            model(some_ids(1, T), cache)
            sizes.append(cache.bytes)
    L, D, H = 2, 16, 2
    neighbours = L * 3 * D
    if kind == "softmax":
        assert sizes == [4 * (neighbours + L * 2 * D * n) for n in (5, 25, 100)]
    else:
        assert sizes == [4 * (neighbours + L * D * D // H)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_guesses_uniformly_and_learns(kind):
    torch.manual_seed(0)
    model, ids = OneMemory(config(kind)), torch.arange(400) % 7
    history = train(
        model, ids, TrainConfig(60, context=16, learning_rate=0.01, warmup=3), progress=False
    )
    assert history.losses[0] == pytest.approx(math.log(31), abs=0.1)
    assert history.losses[-1] < 1


def test_the_trunks_are_alike_but_for_the_memory():
    def outside(kind):
        named = OneMemory(config(kind)).named_parameters()
        return {n: p.shape for n, p in named if "mixer" not in n}

    assert all(outside(kind) == outside("softmax") for kind in KINDS)


def test_the_head_is_tied_and_the_convolution_comes_before_the_memory():
    model = made("delta")
    assert not any("head" in name for name, _ in model.named_parameters())
    ids = some_ids(1, 6)
    with torch.no_grad():
        for block in model.blocks:
            assert isinstance(block, Block)
            block.mixer.out.weight.zero_()
        alone = model(ids)
        assert error(alone[:, 2:3], model(ids[:, 2:3])) < 1e-12  # only the memory looks back


def test_it_can_be_counted_without_memory_for_it():
    with torch.device("meta"):
        for kind in KINDS:
            model = OneMemory(config(kind, width=4096, num_heads=32))
            assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_of_another_model_is_refused_and_left_alone(kind):
    model = made(kind)
    others = [
        made(kind, num_layers=3).new_cache(),
        made(kind, width=32).new_cache(),
        made(KINDS[KINDS.index(kind) - 1]).new_cache(),
    ]
    for cache in others:
        with pytest.raises(ValueError, match="cache: got one for OneMemoryConfig"):
            model(some_ids(1), cache)
        assert cache.length == cache[-1].length == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_memory_of_another_kind_is_named_or_fits(kind, other):
    model, cache = made(kind), made(other).new_cache()
    cache.made_for = model.config
    if type(cache[0][1]) is type(made(kind).new_cache()[0][1]):  # a page is a page
        assert model(some_ids(1), cache).isfinite().all()
    else:
        with pytest.raises(ValueError, match=r"memory: got .*, needs a "):
            model(some_ids(1), cache)


@pytest.mark.parametrize("memory", [RecurrentState(1, 2, 8, 8), "page", [1]])
def test_softmax_attention_takes_keys_and_values_alone(memory):
    mixer = made("softmax", torch.float32).blocks[0].mixer
    with pytest.raises(ValueError, match=r"memory: got (RecurrentState|str|list), needs a KV"):
        mixer(torch.zeros(1, 3, 16), memory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_of_another_batch_is_refused_and_left_alone(kind):
    model = made(kind)
    cache = model.new_cache(3)
    with pytest.raises(ValueError, match=r"memory: got \[3, 3, 16\], needs .* \[2, 3, 16\]"):
        model(some_ids(2), cache)
    assert all(part.length == 0 for layer in cache for part in layer)


@pytest.mark.parametrize(
    "ids, message",
    [
        (torch.zeros(1, 0, dtype=torch.int64), "ids: got .*at least one token"),
        (torch.zeros(5, dtype=torch.int64), r"ids: got \[5\], needs \[B, T\]"),
        (torch.zeros(1, 5), "ids: got torch.float32, needs an int64 tensor"),
        ([[1, 2]], "ids: got list, needs an int64 tensor"),
        (torch.tensor([[0, 31, 3]]), "ids: got token 31, needs 0 to 30"),
        (torch.tensor([[0, -1, 3]]), "ids: got token -1, needs 0 to 30"),
    ],
)
def test_bad_ids_are_named(ids, message):
    with pytest.raises(ValueError, match=message):
        made("delta")(ids)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"memory": "notes"}, r"memory: got 'notes', needs one of \['softmax', 'linear'"),
        ({"num_heads": 5}, "num_heads: got 5, needs a divisor of width = 16"),
        ({"num_layers": 0}, "num_layers: got 0"),
        ({"width": 16.0}, "width: got 16.0"),
        ({"vocab_size": True}, "vocab_size: got True"),
        ({"conv_size": 0}, "conv_size: got 0"),
        ({"mlp_ratio": -1}, "mlp_ratio: got -1"),
        ({"norm_eps": 0.0}, "norm_eps: got 0.0"),
    ],
)  # fmt: skip
def test_inconsistent_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config("delta"), **changes)


def test_configurations_refuse_unknown_fields_and_changes():
    with pytest.raises(TypeError, match="n_head"):
        OneMemoryConfig("delta", 31, n_head=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config("delta").width = 64
