"""Choosing tokens against `transformers`' warpers, and generation with and without a cache."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from llmcourse.generate import generate, next_token_probabilities, sample, stream
from llmcourse.models import GPT2, GPT2Config

CONFIG = GPT2Config(vocab_size=40, context_length=32, width=16, num_layers=2, num_heads=2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = GPT2(CONFIG)
    with torch.no_grad():  # far from its start, so that the logits have something to say
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    return model


def prompt(B=1, T=5, seed=0):
    return torch.randint(0, 40, (B, T), generator=torch.Generator().manual_seed(seed))


def random_logits(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, generator=g, dtype=torch.float64)


# Probabilities


@given(
    temperature=st.floats(0.1, 5),
    top_k=st.none() | st.integers(1, 60),
    top_p=st.none() | st.floats(0.05, 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_filters_equal_the_warpers_of_transformers(temperature, top_k, top_p, seed):
    logits = random_logits(3, 40, seed=seed)
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None and top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    got = next_token_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert (got - scores.softmax(-1)).abs().max() < 1e-12


@given(
    temperature=st.floats(0, 1e6) | st.just(1e-300),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(1e-9, 1),
)
@settings(max_examples=60, deadline=None)
def test_any_setting_gives_a_distribution_that_keeps_the_most_likely(temperature, top_k, top_p):
    logits = random_logits(4, 9)
    p = next_token_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    assert (p.sum(-1) - 1).abs().max() < 1e-12
    assert (p >= 0).all()
    best = logits.argmax(-1, keepdim=True)
    assert torch.equal(p.gather(-1, best), p.amax(-1, keepdim=True))
    if top_k is not None:
        assert ((p > 0).sum(-1) <= top_k).all()


def log(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


@pytest.mark.parametrize(
    "top_p, kept",
    [
        (0.4, [1]),
        (0.5, [1]),
        (0.51, [1, 3]),
        (0.75, [1, 3]),
        (0.76, [0, 1, 3]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_smallest_set_and_the_token_that_crosses(top_p, kept):
    # Powers of two, so that sums are exact at the line.
    p = next_token_probabilities(log(0.125, 0.5, 0.125, 0.25), top_p=top_p)
    assert p.nonzero().flatten().tolist() == kept


def test_temperature_comes_first_then_top_k_then_top_p():
    logits = log(0.5, 0.25, 0.125, 0.125)
    # Temperature 1/2 squares: 16 : 4 : 1 : 1. Of the top 2, the first has 0.8: enough for 0.8.
    got = next_token_probabilities(logits, temperature=0.5, top_k=2, top_p=0.79)
    assert got.tolist() == [1, 0, 0, 0]
    got = next_token_probabilities(logits, temperature=0.5, top_k=2, top_p=0.81)
    assert (got - torch.tensor([0.8, 0.2, 0, 0], dtype=torch.float64)).abs().max() < 1e-12


def test_temperature_zero_is_greedy_with_the_lowest_id_on_ties():
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0], [3.0, 1.0, 2.0, 3.0]])
    p = next_token_probabilities(logits, temperature=0)
    assert p.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_top_k_keeps_exactly_k_with_the_lowest_ids_on_ties():
    p = next_token_probabilities(torch.tensor([2.0, 7.0, 2.0, 2.0]), top_k=2)
    assert p.nonzero().flatten().tolist() == [0, 1]


def test_ties_are_settled_alike_in_a_large_vocabulary():
    logits = torch.zeros(2, 5000)  # an unstable sort keeps the order of few, not of thousands
    assert next_token_probabilities(logits, temperature=0)[:, 0].tolist() == [1, 1]
    p = next_token_probabilities(logits, top_k=7)
    assert p.nonzero()[:, 1].tolist() == [*range(7), *range(7)]


def test_top_k_beyond_the_vocabulary_keeps_all():
    logits = random_logits(5)
    assert torch.equal(
        next_token_probabilities(logits, top_k=10**6), next_token_probabilities(logits)
    )


def test_excluded_tokens_stay_excluded():
    logits = torch.tensor([0.0, -math.inf, 1.0])
    for temperature in (1e-3, 1.0, 1e6):
        p = next_token_probabilities(logits, temperature=temperature, top_k=3, top_p=0.9999)
        assert p[1] == 0 and p.isfinite().all()


def test_logits_stay_unchanged_and_dtype_is_that_of_the_promise():
    logits = random_logits(2, 7)
    before = logits.clone()
    assert next_token_probabilities(logits, top_k=2, top_p=0.5).dtype == torch.float64
    assert torch.equal(logits, before)
    for dtype in (torch.float32, torch.bfloat16):
        assert next_token_probabilities(logits.to(dtype)).dtype == torch.float32


@pytest.mark.parametrize(
    "setting, message",
    [
        (dict(temperature=-0.1), "temperature: got -0.1, needs a finite number, 0"),
        (dict(temperature=math.nan), "temperature: got nan"),
        (dict(temperature=math.inf), "temperature: got inf"),
        (dict(top_k=0), "top_k: got 0, needs a whole number >= 1"),
        (dict(top_k=2.5), "top_k: got 2.5"),
        (dict(top_p=0.0), r"top_p: got 0.0, needs None or a number in \(0, 1\]"),
        (dict(top_p=1.1), "top_p: got 1.1"),
        (dict(top_p=math.nan), "top_p: got nan"),
        (dict(temperature="1"), "temperature: got '1'"),
        (dict(temperature=None), "temperature: got None"),
        (dict(top_k=True), "top_k: got True"),
        (dict(top_p="0.9"), "top_p: got '0.9'"),
    ],
)
def test_bad_settings_are_named_at_the_call(model, setting, message):
    with pytest.raises(ValueError, match=message):
        next_token_probabilities(torch.zeros(5), **setting)
    with pytest.raises(ValueError, match=message):
        stream(model, prompt(), 3, **setting)  # before the first token is asked for


@pytest.mark.parametrize(
    "logits",
    [
        torch.tensor([0.0, math.nan]),
        torch.tensor([0.0, math.inf]),
        torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]]),
        torch.zeros(3, 0),
        torch.zeros(3, dtype=torch.int64),
    ],
)
def test_logits_without_a_distribution_are_refused(logits):
    with pytest.raises(ValueError, match="logits: got"):
        next_token_probabilities(logits)


# Drawing


def test_sample_is_the_inverse_of_the_cumulative_distribution():
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    uniform = torch.tensor([0.0, 0.2, 0.25, 0.74, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert sample(p.expand(6, 6), uniform).tolist() == [1, 1, 3, 3, 4, 4]


@given(u=st.floats(0, 1, exclude_max=True), zeros=st.sets(st.integers(0, 29), max_size=29))
@settings(max_examples=60, deadline=None)
def test_a_token_of_probability_zero_is_never_drawn(u, zeros):
    p = torch.rand(30, generator=torch.Generator().manual_seed(0))
    p[list(zeros)] = 0
    assert p[sample(p, torch.tensor(u, dtype=torch.float64))] > 0


def test_draws_have_the_frequencies_of_the_distribution():
    p = next_token_probabilities(random_logits(6) / 3)
    n = 200_000
    uniform = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # every quantile once
    counts = sample(p.expand(n, 6), uniform).bincount(minlength=6)
    assert (counts / n - p).abs().max() < 2 / n


@pytest.mark.parametrize(
    "p, uniform, message",
    [
        ([0.5, 0.5], 1.0, "uniform: got numbers outside"),
        ([0.5, 0.5], -0.1, "uniform: got numbers outside"),
        ([0.5, 0.5], [0.5, 0.5], r"uniform: got \[2\], needs one a row, \[\]"),
        ([0.5, -0.5], 0.5, "probabilities: got"),
        ([0.0, 0.0], 0.5, "probabilities: got"),
        ([math.nan, 1.0], 0.5, "probabilities: got"),
        ([math.inf, 1.0], 0.5, "probabilities: got"),
        (1.0, 0.5, "probabilities: got one number"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(p, uniform, message):
    with pytest.raises(ValueError, match=message):
        sample(torch.tensor(p), torch.tensor(uniform))


# Generation


def test_greedy_generation_is_the_argmax_of_full_passes(model):
    ids = prompt(B=3)
    expected = ids
    with torch.no_grad():
        for _ in range(10):
            nxt = model(expected)[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat([expected, nxt], dim=1)
    assert torch.equal(generate(model, ids, 10, temperature=0), expected)


@pytest.mark.parametrize(
    "setting", [dict(temperature=0), dict(), dict(temperature=0.7, top_k=9, top_p=0.9)]
)
def test_the_cache_does_not_change_what_is_generated(model, setting):
    with_cache = generate(model, prompt(B=2), 20, seed=5, **setting)
    without = generate(model, prompt(B=2), 20, seed=5, use_cache=False, **setting)
    assert torch.equal(with_cache, without)


def test_one_seed_gives_one_text(model):
    first = generate(model, prompt(), 20, seed=1)
    torch.manual_seed(99)
    assert torch.equal(generate(model, prompt(), 20, seed=1), first)
    assert not torch.equal(generate(model, prompt(), 20, seed=2), first)


def test_a_seed_leaves_the_global_generator_alone_and_none_follows_it(model):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    generate(model, prompt(), 5, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    first = generate(model, prompt(), 20)
    torch.manual_seed(7)
    assert torch.equal(generate(model, prompt(), 20), first)


def test_tokens_stream_one_step_at_a_time(model):
    calls = []
    handle = model.register_forward_hook(lambda m, args, out: calls.append(args[0].shape[1]))
    tokens = stream(model, prompt(), 4, seed=0)
    assert calls == []
    next(tokens)
    assert calls == [5]  # the prompt at once
    rest = list(tokens)
    handle.remove()
    assert len(rest) == 3
    assert calls == [5, 1, 1, 1]  # then one token each; the last is never read


def test_without_a_cache_everything_is_read_again(model):
    calls = []
    handle = model.register_forward_hook(lambda m, args, out: calls.append(args[0].shape[1]))
    generate(model, prompt(), 4, seed=0, use_cache=False)
    handle.remove()
    assert calls == [5, 6, 7, 8]


def test_a_stop_token_ends_the_text_and_is_part_of_it(model):
    free = generate(model, prompt(), 20, seed=3)[0, 5:].tolist()
    stop = free[7]
    first = free.index(stop)
    assert (
        generate(model, prompt(), 20, seed=3, stop=[stop])[0, 5:].tolist() == free[: first + 1]
    )


def test_a_finished_row_repeats_its_stop_token_until_all_are_finished(model):
    ids = prompt(B=4)
    free = generate(model, ids, 27, seed=3)[:, 5:]
    stop = {3, 11, 20, 28, 33}
    ends = [
        next((t for t, token in enumerate(row.tolist()) if token in stop), None) for row in free
    ]
    assert None not in ends and len(set(ends)) > 1, "the test needs rows that end apart"
    got = generate(model, ids, 27, seed=3, stop=stop)[:, 5:]
    assert got.shape[1] == max(ends) + 1
    for row, original, end in zip(got.tolist(), free.tolist(), ends, strict=True):
        assert row[: end + 1] == original[: end + 1]
        assert set(row[end:]) == {original[end]}


def test_the_context_may_be_filled_and_its_last_token_predicted(model):
    assert generate(model, prompt(T=32), 1, seed=0).shape == (1, 33)
    assert generate(model, prompt(T=5), 28, seed=0).shape == (1, 33)
    assert generate(model, prompt(T=5), 28, seed=0, use_cache=False).shape == (1, 33)


def test_no_new_tokens_is_the_prompt(model):
    assert torch.equal(generate(model, prompt(), 0), prompt())


@pytest.mark.parametrize(
    "ids, count, message",
    [
        (torch.zeros(1, 33, dtype=torch.int64), 1, "ids: got 33 tokens, needs at most 32"),
        (torch.zeros(1, 5, dtype=torch.int64), 29, "max_new_tokens: got 29, needs at most 28"),
        (torch.zeros(1, 0, dtype=torch.int64), 1, "ids: got an empty prompt"),
        (torch.zeros(0, 3, dtype=torch.int64), 1, "ids: got an empty prompt"),
        (torch.zeros(5, dtype=torch.int64), 1, "ids: got"),
        (torch.zeros(1, 5), 1, "ids: got"),
        ([1, 2], 1, "ids: got list"),
        (torch.zeros(1, 5, dtype=torch.int64), -1, "max_new_tokens: got -1"),
        (torch.zeros(1, 5, dtype=torch.int64), 2.5, "max_new_tokens: got 2.5"),
        (torch.zeros(1, 5, dtype=torch.int64), "3", "max_new_tokens: got '3'"),
    ],
)
def test_bad_prompts_are_named_at_the_call(model, ids, count, message):
    with pytest.raises(ValueError, match=message):
        stream(model, ids, count)


def test_ids_outside_the_vocabulary_are_named(model):
    with pytest.raises(ValueError, match="ids: got token 40, needs 0 to 39"):
        generate(model, torch.tensor([[1, 40]]), 1)


@pytest.mark.parametrize("stop", [3, "a", None, [1.5], ["a"], torch.tensor(3)])
def test_stop_tokens_must_be_a_collection_of_ids(model, stop):
    with pytest.raises(ValueError, match="stop: got"):
        stream(model, prompt(), 1, stop=stop)


def test_stop_tokens_may_come_in_any_collection(model):
    ids = prompt(B=4)
    expected = generate(model, ids, 9, seed=1, stop=[3, 7, 11])
    for stop in ({3, 7, 11}, torch.tensor([3, 7, 11]), (i for i in (3, 7, 11))):
        assert torch.equal(generate(model, ids, 9, seed=1, stop=stop), expected)


@pytest.mark.parametrize("seed", ["a", 1.5, True, 2**70])
def test_a_seed_that_is_no_int_of_64_bits_is_refused(model, seed):
    with pytest.raises(ValueError, match="seed: got"):
        stream(model, prompt(), 1, seed=seed)


def test_a_model_without_values_is_refused(model):
    with torch.device("meta"):
        empty = GPT2(model.config)
    with pytest.raises(ValueError, match="logits: got a tensor on the meta device"):
        generate(empty, prompt(), 1)


def test_lists_are_no_tensors():
    with pytest.raises(ValueError, match="logits: got list, needs a tensor"):
        next_token_probabilities([0.5, 0.5])
    with pytest.raises(ValueError, match="uniform: got float, needs a tensor"):
        sample(torch.ones(2), 0.5)


def test_a_misspelt_setting_is_refused(model):
    with pytest.raises(TypeError, match="topk"):
        generate(model, prompt(), 1, topk=3)


def test_generating_keeps_no_graph(model):
    assert not generate(model, prompt(), 3).requires_grad
    for _ in stream(model, prompt(), 2):
        assert torch.is_grad_enabled()  # the caller's own setting is not touched


def test_another_default_device_changes_nothing(model):
    ids = prompt()
    expected = generate(model, ids, 5, seed=3)
    with torch.device("meta"):  # where whatever is made without a device has no numbers
        assert torch.equal(generate(model, ids, 5, seed=3), expected)
