"""Every field of every configuration, and every key of config.json, with wrong values."""

import copy
import dataclasses
import json
import math

import pytest
import torch

from llmcourse.models import (
    GPT2,
    CheckpointError,
    GPT2Config,
    KimiK3,
    KimiK3Config,
    KimiLinear,
    KimiLinearConfig,
    OneMemory,
    OneMemoryConfig,
    gpt2,
    kimi_k3,
    kimi_linear,
)

CONFIGS = {
    GPT2: GPT2Config.tiny(),
    OneMemory: OneMemoryConfig("kda", vocab_size=64),
    KimiLinear: dataclasses.replace(KimiLinearConfig.tiny(), num_groups=2, active_groups=2),
    KimiK3: KimiK3Config.tiny(),
}
FIELDS = [(m, field) for m, config in CONFIGS.items() for field in dataclasses.asdict(config)]
WRONG = [None, "x", "", b"8", [], {}, (), [1], (1.0,), object, 1j, 8.0, 1.5, True, False]
WRONG += [-1, -1.0, 0, 0.0, 1, 3, 1.0, 10**4, 2**31, 10**30, -(10**30), 10**400, 1e300]
WRONG += [math.nan, math.inf, -math.inf, torch.tensor(8), torch.zeros(2)]


def named(make, field):
    return f"{make.__name__}.{field}"


@pytest.mark.parametrize("make, field", FIELDS, ids=[named(*x) for x in FIELDS])
def test_a_wrong_value_is_refused_by_the_name_of_its_field(make, field):
    refused = 0
    for value in WRONG:
        try:
            config = dataclasses.replace(CONFIGS[make], **{field: value})
        except ValueError as error:
            assert field in str(error) and ": got " in str(error), (value, str(error))
            assert "needs " in str(error), (value, str(error))
            refused += 1
            continue
        assert type(value) in (int, float, bool, tuple), value
        if type(value) is int and field.startswith("num_") and value > 100:
            continue  # there may be as many layers, but nobody has the time to make them
        with torch.device("meta"):
            assert make(config).config == config, value
    assert refused >= len(WRONG) - 10


@pytest.mark.parametrize("make", CONFIGS, ids=lambda make: make.__name__)
def test_a_field_that_no_configuration_has_is_named(make):
    config = CONFIGS[make]
    for name in ("n_head", "rotary", "num_head", "Width"):
        with pytest.raises(TypeError, match=rf"unexpected keyword argument '{name}'"):
            type(config)(**vars(config), **{name: 4})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 8


@pytest.mark.parametrize(
    "make, changes, message",
    [
        (GPT2, {"num_heads": 3}, "num_heads: got 3, needs a divisor of width = 128"),
        (OneMemory, {"num_heads": 3}, "num_heads: got 3, needs a divisor of width = 64"),
        (KimiLinear, {"num_active": 9}, "num_active: got 9, needs at most the 8 experts"),
        (
            KimiLinear,
            {"num_groups": 3},
            "num_groups: got 3, needs a divisor of num_experts = 8",
        ),
        (KimiLinear, {"num_dense": 5}, "num_dense: got 5, needs at most num_layers = 4"),
        (KimiLinear, {"mla_layers": (3, 3)}, "mla_layers: got .*, needs .* rising"),
        (KimiLinear, {"mla_layers": (5,)}, "mla_layers: got .*, needs .* num_layers = 4"),
        (KimiK3, {"num_active": 17}, "num_active: got 17, needs at most num_experts = 16"),
        (KimiK3, {"num_dense": 6}, "num_dense: got 6, needs at most num_layers = 5"),
        (KimiK3, {"mla_layers": (3, 3)}, "mla_layers: got .*, needs .* different layers"),
        (KimiK3, {"mla_layers": (6,)}, "mla_layers: got .*, needs .* num_layers = 5"),
        (KimiK3, {"mla_layers": (), "num_layers": 2**31}, "num_layers: got 2147483648, needs"),
    ],
)
def test_numbers_that_do_not_fit_one_another_are_both_named(make, changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIGS[make], **changes)


def test_the_most_layers_that_are_a_number_take_no_time_to_refuse():
    for make in (KimiLinear, KimiK3):
        config = dataclasses.replace(
            CONFIGS[make], num_layers=2**31 - 1, mla_layers=(2**31 - 1,)
        )
        with pytest.raises(ValueError, match="mla_layers"):
            dataclasses.replace(config, num_layers=2**31 - 2)


# config.json


def in_transformers_dialect(config):
    public = kimi_linear.config_to_public(config)
    linear, dense = public.pop("linear_attn_config"), public.pop("first_k_dense_replace")
    layers = range(1, config.num_layers + 1)
    full = config.mla_layers
    public["layer_types"] = [
        "full_attention" if i in full else "linear_attention" for i in layers
    ]
    public["mlp_layer_types"] = ["dense" if i <= dense else "sparse" for i in layers]
    for theirs, ours in kimi_linear.ORIGINAL_LINEAR.items():
        public[ours] = linear[theirs]
    return public


def both_dialects(config):
    return kimi_linear.config_to_public(config) | in_transformers_dialect(config)


def quantised(config):
    return kimi_k3.config_to_public(config) | {"quantization_config": kimi_k3.MXFP4_SCHEME}


READERS = {
    "gpt2": (gpt2, gpt2.config_to_public, CONFIGS[GPT2]),
    "original": (kimi_linear, kimi_linear.config_to_public, CONFIGS[KimiLinear]),
    "transformers": (kimi_linear, in_transformers_dialect, CONFIGS[KimiLinear]),
    "both": (kimi_linear, both_dialects, CONFIGS[KimiLinear]),
    "kimi_k3": (kimi_k3, kimi_k3.config_to_public, CONFIGS[KimiK3]),
    "mxfp4": (kimi_k3, quantised, CONFIGS[KimiK3]),
}
VALUES = [None, "x", "", [], {}, [[]], [None], {"a": 1}, ["x"], [1], [10**30], [1.5]]
VALUES += [-1, 0, 1, 3, 1.5, -1.5, True, False, 10**6, 2**31, 10**30, -(10**30), 10**400]
VALUES += [1e300, 1e-300, math.inf, math.nan]


def paths(content, before=()):
    """The way to every value in an object of objects."""
    for key, value in content.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths(value, (*before, key))


def part_at(content, path):
    for key in path[:-1]:
        content = content[key]
    return content


@pytest.mark.parametrize("kind", READERS)
def test_the_configurations_that_the_sweep_begins_with_are_right(kind):
    module, write, config = READERS[kind]
    assert module.config_from_public(json.loads(json.dumps(write(config)))) == config


@pytest.mark.parametrize("kind", READERS)
def test_any_value_of_any_key_is_a_configuration_or_a_checkpoint_error(kind):
    module, write, config = READERS[kind]
    original, refused = json.loads(json.dumps(write(config))), 0
    for path in paths(original):
        for value in VALUES:
            public = copy.deepcopy(original)
            part_at(public, path)[path[-1]] = value
            try:
                read = module.config_from_public(public)
            except CheckpointError as error:
                assert len(str(error)) < 20_000, (path, value)
                refused += 1
            else:
                assert type(read) is type(config), (path, value)
        public = copy.deepcopy(original)
        del part_at(public, path)[path[-1]]
        try:
            module.config_from_public(public)
        except CheckpointError as error:
            # Without the part that only the original dialect has, it is the other dialect.
            expected = "missing" if path[-1] == "linear_attn_config" else path[-1]
            assert expected in str(error) or kind == "both", path
    assert refused > 0.5 * len(VALUES) * len(list(paths(config_keys(original))))


def config_keys(original):
    """Without what describes the quantisation, of which only the format is read."""
    return {key: value for key, value in original.items() if "quantization" not in key}


@pytest.mark.parametrize("kind", READERS)
def test_a_key_that_nobody_knows_is_refused_wherever_it_is(kind):
    module, write, config = READERS[kind]
    original = json.loads(json.dumps(write(config)))
    for path in [("sliding_window",), *((*p, "sliding_window") for p in paths(original))]:
        public = copy.deepcopy(original)
        part = part_at(public, path)
        if isinstance(part, dict) and "quantization_config" not in path:
            part["sliding_window"] = 8
            with pytest.raises(
                CheckpointError, match=r"unknown.* sliding_window|sliding_window = 8"
            ):
                module.config_from_public(public)


def test_dense_layers_that_are_not_the_first_are_refused_with_what_to_do():
    public = in_transformers_dialect(CONFIGS[KimiLinear])
    for mlps in (
        ["sparse", "dense", "sparse", "sparse"],
        ["dense", "sparse", "dense", "sparse"],
    ):
        with pytest.raises(
            CheckpointError, match="the dense layers must be the first; reorder"
        ):
            kimi_linear.config_from_public(public | {"mlp_layer_types": mlps})


@pytest.mark.parametrize("kind", ["original", "kimi_k3"])
def test_lists_of_layers_for_more_layers_than_there_are_name_the_first(kind):
    module, write, config = READERS[kind]
    public = write(config)
    public.get("text_config", public)["num_hidden_layers"] = 2**31 - 1
    with pytest.raises(CheckpointError) as caught:
        module.config_from_public(public)
    lines = str(caught.value).splitlines()
    assert len(lines) == 101 and f"layer {config.num_layers + 1} is in neither" in lines[1]
