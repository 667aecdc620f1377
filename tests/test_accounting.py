"""Closed forms against what is really allocated and really multiplied."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from llmcourse import accounting
from llmcourse.models import GPT2, GPT2Config, OneMemory, OneMemoryConfig
from llmcourse.models.one_memory import MEMORIES

PRESETS = ["tiny", "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl", "gpt3"]
SMALL = [
    GPT2Config(vocab_size=11, context_length=9, width=6, num_layers=1, num_heads=1),
    GPT2Config(vocab_size=64, context_length=7, width=24, num_layers=3, num_heads=4),
    GPT2Config(vocab_size=33, context_length=12, width=10, num_layers=2, num_heads=5),
]
PART_OF = {
    "token_embedding": "token embedding",
    "position_embedding": "position embedding",
    "attention": "attention",
    "mlp": "MLP",
    "norm": "LayerNorm",
}


def counted(config):
    """Parameters by part, of a real model without memory behind it."""
    with torch.device("meta"):
        model = GPT2(config)
    parts = dict.fromkeys(PART_OF.values(), 0)
    for name, parameter in model.named_parameters():
        part = next(p for word, p in PART_OF.items() if word in name.rpartition(".")[0])
        parts[part] += parameter.numel()
    return parts


@pytest.mark.parametrize("config", [getattr(GPT2Config, p)() for p in PRESETS] + SMALL)
def test_parameters_are_those_of_the_model(config):
    assert accounting.parameter_parts(config) == counted(config)
    assert accounting.parameters(config) == sum(counted(config).values())
    assert accounting.active_parameters(config) == accounting.parameters(config)


def test_the_published_sizes():
    assert accounting.parameters(GPT2Config.gpt2()) == 124_439_808
    assert round(accounting.parameters(GPT2Config.gpt3()) / 1e9, 1) == 174.6


def multiplied(config, pieces):
    """FLOPs that PyTorch counts while a model reads tokens in pieces through its cache."""
    model, start, counts = GPT2(config), 0, []
    cache = model.new_cache()
    ids = torch.zeros(1, sum(pieces), dtype=torch.int64)
    with torch.no_grad():
        for size in pieces:
            with FlopCounterMode(display=False) as counter:
                model(ids[:, start : start + size], cache)
            counts.append(counter.get_total_flops())
            start += size
    if pieces[0] == 1:
        # With one position to sum over, PyTorch's einsum multiplies element by element, and
        # its counter looks at matrix products only.
        counts[0] += accounting.decode_flops_parts(config, 1)["attention sums"]
    return counts


@pytest.mark.parametrize("config", SMALL)
def test_decoding_is_counted_exactly_token_by_token(config):
    T = config.context_length
    counts = multiplied(config, [1] * T)
    assert counts == [accounting.decode_flops(config, t) for t in range(1, T + 1)]
    assert sum(counts) == accounting.prefill_flops(config, T)


def test_decoding_after_a_prefill_costs_the_same():
    config = SMALL[1]
    assert multiplied(config, [4, 1])[1] == accounting.decode_flops(config, 5)


def test_a_masked_kernel_multiplies_the_other_half_too():
    config, T = SMALL[1], 7
    attention = 2 * 2 * config.num_layers * config.width
    unseen = attention * T * (T - 1) // 2
    assert multiplied(config, [T]) == [accounting.prefill_flops(config, T) + unseen]


@given(context=st.integers(1, 5000), width=st.integers(1, 64), layers=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_prefill_is_the_sum_of_decoding_part_by_part(context, width, layers):
    config = GPT2Config(50, 10, width, layers, 1)
    parts = accounting.prefill_flops_parts(config, context)
    steps = [accounting.decode_flops_parts(config, t) for t in range(1, context + 1)]
    assert parts == {name: sum(step[name] for step in steps) for name in parts}
    assert sum(parts.values()) == accounting.prefill_flops(config, context)


@pytest.mark.parametrize("config", SMALL)
def test_cache_bytes_are_those_of_the_cache(config):
    model = GPT2(config)
    cache = model.new_cache(batch=3)
    for t in range(config.context_length + 1):
        assert accounting.cache_bytes(config, t, bytes_per_number=4, batch=3) == cache.bytes
        if t < config.context_length:
            with torch.no_grad():
                model(torch.zeros(3, 1, dtype=torch.int64), cache)


def test_gpt2_remembers_18432_numbers_for_each_token():
    config = GPT2Config.gpt2()
    assert sum(accounting.cache_numbers(config, 1).values()) == 18_432
    assert accounting.cache_bytes(config, 1) == 2 * 18_432
    assert accounting.cache_parts(config, 10, batch=2) == {"keys": 368_640, "values": 368_640}


def test_what_cannot_be_counted_is_refused():
    config = GPT2Config.tiny()
    for count in (accounting.decode_flops, accounting.prefill_flops):
        with pytest.raises(ValueError, match="context"):
            count(config, 0)
    with pytest.raises(ValueError, match="context"):
        accounting.cache_bytes(config, -1)
    with pytest.raises(ValueError, match="batch"):
        accounting.cache_bytes(config, 1, batch=0)
    with pytest.raises(ValueError, match="bytes_per_number"):
        accounting.cache_bytes(config, 1, bytes_per_number=0)
    for count in (accounting.parameters, lambda c: accounting.cache_bytes(c, 1)):
        with pytest.raises(TypeError, match="config is a dict"):
            count({"width": 3})
    with pytest.raises(TypeError, match="config is a dict"):
        accounting.decode_flops({}, 1)


ONE = [
    OneMemoryConfig(kind, 33, width=24, num_layers=3, num_heads=4, conv_size=3, mlp_ratio=2)
    for kind in MEMORIES
]
ONE_PART_OF = {
    "token_embedding": "token embedding",
    "conv": "short convolution",
    "mixer": "memory",
    "mlp": "MLP",
    "norm": "RMSNorm",
}


def memory_of(config):
    return config.memory


@pytest.mark.parametrize("config", ONE, ids=memory_of)
def test_parameters_of_one_memory_are_those_of_the_model(config):
    parts = dict.fromkeys(ONE_PART_OF.values(), 0)
    for name, parameter in OneMemory(config).named_parameters():
        parts[next(p for word, p in ONE_PART_OF.items() if word in name)] += parameter.numel()
    assert accounting.parameter_parts(config) == parts
    assert accounting.active_parameters(config) == sum(parts.values())


@pytest.mark.parametrize("config", ONE, ids=memory_of)
def test_cache_bytes_of_one_memory_are_those_of_its_cache(config):
    model = OneMemory(config)
    cache = model.new_cache(batch=3)
    for t in range(5):
        assert accounting.cache_bytes(config, t, bytes_per_number=4, batch=3) == cache.bytes
        with torch.no_grad():
            model(torch.zeros(3, 1, dtype=torch.int64), cache)


@pytest.mark.parametrize("config", ONE, ids=memory_of)
def test_a_step_of_one_memory_is_counted_exactly(config):
    model, ids = OneMemory(config), torch.zeros(1, 9, dtype=torch.int64)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :8], cache)
        with FlopCounterMode(display=False) as counter:
            model(ids[:, 8:], cache)
    parts = accounting.decode_flops_parts(config, 9)
    # PyTorch counts matrix products alone; these are done entry by entry.
    entries = parts["short convolution"] + parts.get("write", 0) + parts.get("fade", 0)
    assert counter.get_total_flops() == accounting.decode_flops(config, 9) - entries


@pytest.mark.parametrize("config", ONE, ids=memory_of)
def test_reading_a_text_costs_one_memory_what_its_steps_cost(config):
    steps = [accounting.decode_flops(config, t) for t in range(1, 41)]
    assert accounting.prefill_flops(config, 40) == sum(steps)
    grows = config.memory == "softmax"
    assert (steps[0] < steps[-1]) == grows and (len(set(steps)) > 1) == grows


def test_every_memory_is_accounted_for():
    for config in ONE:
        assert accounting.parameters(config) > 0
    assert {c.memory for c in ONE} == set(MEMORIES)
