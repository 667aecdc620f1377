"""Closed forms against what is really allocated, really multiplied and really saved."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from llmcourse import accounting, measure
from llmcourse.layers.attn_res import AttentionResidual
from llmcourse.layers.kda import KimiDeltaAttention
from llmcourse.layers.mla import MultiHeadLatentAttention
from llmcourse.layers.mlp import GatedMLP
from llmcourse.layers.moe import LatentMoE, MixtureOfExperts
from llmcourse.models import (
    GPT2,
    GPT2Config,
    KimiK3,
    KimiK3Config,
    KimiLinear,
    KimiLinearConfig,
    OneMemory,
    OneMemoryConfig,
    kimi_k3,
    kimi_linear,
    mxfp4,
)
from llmcourse.models.one_memory import MEMORIES
from llmcourse.ops import _chunks

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
    assert multiplied(config, [T]) == [accounting.prefill_flops(config, T, form="forward")]


@given(context=st.integers(1, 5000), width=st.integers(1, 64), layers=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_prefill_is_the_sum_of_decoding_part_by_part(context, width, layers):
    config = GPT2Config(50, 5000, width, layers, 1)
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
        for wrong in (0, -3, 2.0, config.context_length + 1):
            with pytest.raises(ValueError, match="context"):
                count(config, wrong)
    with pytest.raises(ValueError, match="context"):
        accounting.cache_bytes(config, -1)
    with pytest.raises(ValueError, match="at most the model's context_length = 256"):
        accounting.cache_bytes(config, 257)
    with pytest.raises(ValueError, match="batch"):
        accounting.cache_bytes(config, 1, batch=0)
    with pytest.raises(ValueError, match="bytes_per_number"):
        accounting.cache_bytes(config, 1, bytes_per_number=0)
    for count in (accounting.parameters, lambda c: accounting.cache_bytes(c, 1)):
        with pytest.raises(TypeError, match="config is a dict"):
            count({"width": 3})
    with pytest.raises(TypeError, match="config is a dict"):
        accounting.decode_flops({}, 1)
    with pytest.raises(ValueError, match="form: got 'fast', needs one of"):
        accounting.prefill_flops(config, 1, form="fast")


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


# Any configuration

MODEL = {
    GPT2Config: GPT2,
    OneMemoryConfig: OneMemory,
    KimiLinearConfig: KimiLinear,
    KimiK3Config: KimiK3,
}


def model_of(config):
    torch.manual_seed(0)
    return MODEL[type(config)](config)


@st.composite
def simple_configs(draw):
    """GPT-2 and every memory. Sums run over two numbers at least: see `multiplied`."""
    heads, layers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    width = heads * draw(st.integers(2, 6))
    kind = draw(st.sampled_from(["gpt2", *MEMORIES]))
    if kind == "gpt2":
        return GPT2Config(draw(st.integers(2, 40)), 200, width, layers, heads)
    sizes = {"conv_size": draw(st.integers(1, 4)), "mlp_ratio": draw(st.integers(1, 4))}
    return OneMemoryConfig(kind, draw(st.integers(2, 40)), width, layers, heads, **sizes)


@st.composite
def kimi_configs(draw):
    """Kimi Linear and Kimi K3, with and without each kind of layer."""
    layers, experts = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    kind = draw(st.sampled_from([KimiLinearConfig, KimiK3Config]))
    least = {"shared_key_width": 0, "num_shared": 0, "num_dense": 0, "conv_size": 1}
    most = {"num_dense": layers, "num_active": experts}
    sizes = {
        name: draw(st.integers(least.get(name, 2), most.get(name, 9)))
        for name, field in kind.__dataclass_fields__.items()
        if field.type is int and not name.endswith(("groups", "context_length"))
    }
    sizes |= {"num_layers": layers, "num_experts": experts}
    mla = draw(st.sets(st.integers(1, layers)))
    return kind(mla_layers=tuple(sorted(mla)), **sizes)


REAL = [GPT2Config.gpt2(), KimiLinearConfig.kimi_linear_48b(), KimiK3Config.kimi_k3()]


def assert_numbers_are_those_of_the_model(config):
    with torch.device("meta"):
        model = MODEL[type(config)](config)
    numbers = sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() for b in model.buffers())  # selection biases
    with_biases = buffers if isinstance(config, KimiK3Config) else 0
    assert accounting.parameters(config) == numbers + with_biases
    assert sum(accounting.weight_numbers(config).values()) == numbers + buffers


@given(config=st.one_of(simple_configs(), kimi_configs()))
@settings(max_examples=60, deadline=None)
def test_numbers_of_any_configuration_are_those_of_the_model(config):
    assert_numbers_are_those_of_the_model(config)


@pytest.mark.parametrize("config", REAL, ids=lambda c: type(c).__name__)
def test_numbers_of_the_real_models_are_those_of_the_model(config):
    assert_numbers_are_those_of_the_model(config)


# What is multiplied


def counted_flops(model, *inputs):
    """FLOPs that PyTorch counts, by name of the module; "" is the whole model."""
    counter = FlopCounterMode(display=False, custom_mapping=measure.IN_PLACE)
    with torch.no_grad(), counter:
        model(*inputs)
    found = counter.get_flop_counts()
    return {n.partition(".")[2]: sum(c.values()) for n, c in found.items() if n != "Global"}


def kimi_part(model, name):
    """The part of accounting that the FLOPs of a module, without those inside it, belong to."""
    names = name.split(".")
    for i in range(1, len(names) + 1):
        owner, inside = model.get_submodule(".".join(names[:i])), names[i:]
        if isinstance(owner, KimiDeltaAttention):
            return "KDA projections" if inside else "KDA state"
        if isinstance(owner, MultiHeadLatentAttention):
            return "MLA" if inside in ([], ["latent_up"]) else "MLA projections"
        if isinstance(owner, MixtureOfExperts | LatentMoE):
            parts = {"router": "router", "shared": "shared experts"}
            parts |= dict.fromkeys(["up", "down"], "latent projections")
            return parts.get((inside or ["experts"])[0], "routed experts")
        if isinstance(owner, GatedMLP):
            return "dense MLP"
        if isinstance(owner, AttentionResidual):
            return "attention residuals"
    return name


def counted_by_part(model, *inputs):
    counts, parts = counted_flops(model, *inputs), Counter()
    for name, module in model.named_modules():
        if name and name in counts:
            inside = [f"{name}.{child}" for child, _ in module.named_children()]
            own = counts[name] - sum(counts.get(child, 0) for child in inside)
            parts[kimi_part(model, name)] += own
    assert parts.total() == counts[""]
    return +parts  # without zeros


def as_pytorch_counts(config, parts, tokens, *, recurrent):
    """A Kimi model's parts without what is done entry by entry, which PyTorch leaves out."""
    parts = Counter(parts)
    parts["MLA"] = sum(parts.pop(f"MLA {part}") for part in ("latents", "scores", "sums"))
    del parts["short convolutions"]
    if recurrent:
        parts["KDA state"] = parts["KDA state"] * 4 // 7  # fading, 1, and writing, 2
    if isinstance(config, KimiK3Config):  # scores; the sum over the embedding alone
        parts["attention residuals"] //= 2
        parts["attention residuals"] -= tokens * 2 * config.width
    return +parts


@given(config=kimi_configs(), tokens=st.integers(2, 140))
@settings(max_examples=30, deadline=None)
def test_reading_at_once_is_counted_exactly_part_by_part(config, tokens):
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    parts = accounting.prefill_flops_parts(config, tokens, form="forward")
    expected = as_pytorch_counts(config, parts, tokens, recurrent=False)
    assert counted_by_part(model_of(config), ids) == expected


@given(config=kimi_configs(), context=st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_a_step_in_the_form_that_the_layer_chooses_is_counted_part_by_part(config, context):
    model, ids = model_of(config), torch.zeros(1, context, dtype=torch.int64)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, 1:], cache)
    parts = accounting.decode_flops_parts(config, context)
    expected = as_pytorch_counts(config, parts, 1, recurrent=True)
    assert counted_by_part(model, ids[:, :1], cache) == expected


@given(config=simple_configs(), tokens=st.integers(2, 140))
@settings(max_examples=30, deadline=None)
def test_reading_at_once_is_counted_exactly(config, tokens):
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    parts = accounting.prefill_flops_parts(config, tokens, form="forward")
    parts.pop("short convolution", None)  # entry by entry
    assert counted_flops(model_of(config), ids)[""] == sum(parts.values())


@pytest.mark.parametrize("config", ONE, ids=memory_of)
def test_chunks_in_many_segments_cost_the_same(config, monkeypatch):
    model, ids = model_of(config), torch.zeros(1, 200, dtype=torch.int64)
    at_once = counted_flops(model, ids)
    monkeypatch.setattr(_chunks, "SEGMENT", 1)  # each chunk on its own
    assert counted_flops(model, ids) == at_once


def test_what_each_token_may_see_is_the_least():
    for config in (KimiLinearConfig.kimi_linear_48b(), KimiK3Config.kimi_k3()):
        causal = accounting.prefill_flops_parts(config, 1024)
        forward = accounting.prefill_flops_parts(config, 1024, form="forward")
        differ = {part for part in causal if causal[part] != forward[part]}
        assert differ == {"KDA state", "MLA scores", "MLA sums"}
        assert all(causal[part] < forward[part] for part in differ)


# Bytes


def saved_bytes(folder):
    files = [load_file(path) for path in folder.glob("*.safetensors")]
    return sum(tensor.nbytes for file in files for tensor in file.values())


def padding(config, bytes_per_number):
    """Bytes that fill up the rates in Kimi K3's files."""
    kda_layers = config.num_layers - len(config.mla_layers)
    return kda_layers * (-config.kda_heads % 128) * bytes_per_number


TINY = [kind.tiny() for kind in (GPT2Config, KimiLinearConfig, KimiK3Config)]


@pytest.mark.parametrize("config", TINY, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
def test_weight_bytes_are_those_of_a_saved_model(config, name, tmp_path):
    dtype = getattr(torch, name)
    model_of(config).to(dtype).save_pretrained(tmp_path, max_shard_bytes=10**6)
    extra = padding(config, dtype.itemsize) if isinstance(config, KimiK3Config) else 0
    assert saved_bytes(tmp_path) == accounting.weight_bytes(config, name) + extra


def in_mixed_precision(config):
    """A model in bfloat16, but for what its loader keeps in float32."""
    exact = {KimiLinearConfig: kimi_linear.EXACT, KimiK3Config: kimi_k3.EXACT}[type(config)]
    model = model_of(config).to(torch.bfloat16)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if name.endswith(exact):
            tensor.data = tensor.data.float()
    return model


def put_experts_in_mxfp4(file):
    tensors = load_file(file)
    for name in [n for n in tensors if ".experts." in n]:
        shapes = mxfp4.stored_shapes(name, tuple(tensors.pop(name).shape))
        tensors |= {n: torch.zeros(s, dtype=torch.uint8) for n, s in shapes.items()}
    save_file(tensors, file)


def held_bytes(model):
    return sum(t.nbytes for t in itertools.chain(model.parameters(), model.buffers()))


def test_published_bytes_of_kimi_k3_are_those_of_a_checkpoint_with_experts_in_mxfp4(tmp_path):
    config = KimiK3Config.tiny()
    in_mixed_precision(config).save_pretrained(tmp_path)
    put_experts_in_mxfp4(tmp_path / "model.safetensors")
    expected = accounting.weight_bytes(config, "published")
    assert saved_bytes(tmp_path) == expected + padding(config, 4)
    model = KimiK3.from_pretrained(tmp_path, dtype=torch.bfloat16)  # it is a checkpoint
    unpacked = accounting.published_precision(config) | {"routed experts": "bfloat16"}
    assert held_bytes(model) == accounting.weight_bytes(config, unpacked)


def test_published_bytes_of_kimi_linear_are_those_of_a_checkpoint(tmp_path):
    config = KimiLinearConfig.tiny()
    in_mixed_precision(config).save_pretrained(tmp_path)
    assert saved_bytes(tmp_path) == accounting.weight_bytes(config, "published")
    model = KimiLinear.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert held_bytes(model) == accounting.weight_bytes(config, "published")


def test_kimi_k3_is_published_in_1_42_tebibytes():
    config = KimiK3Config.kimi_k3()
    parts = accounting.weight_parts(config, "published")
    # 16 bytes of codes and one of scale for 32 weights.
    assert parts["routed experts"] == 2_722_740_830_208 // 32 * 17
    assert sum(parts.values()) == 1_561_126_976_640
    assert round(sum(parts.values()) / 2**40, 2) == 1.42
    assert accounting.weight_bytes(config) == 2 * 2_779_484_476_000


@given(config=st.one_of(simple_configs(), kimi_configs()), tokens=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_cache_bytes_of_any_configuration_are_those_of_its_cache(config, tokens):
    for name in ("float64", "float32", "bfloat16"):
        model = model_of(config).to(getattr(torch, name))
        cache = model.new_cache(batch=2)
        with torch.no_grad():
            model(torch.zeros(2, tokens, dtype=torch.int64), cache)
        assert accounting.cache_bytes(config, tokens, precision=name, batch=2) == cache.bytes


def test_each_part_of_a_cache_may_have_its_own_precision():
    config = KimiK3Config.kimi_k3()
    numbers = accounting.cache_numbers(config, 10)
    usual = {"state": 4, "neighbours": 4, "latents": 2, "shared keys": 2}
    parts = accounting.cache_parts(config, 10, batch=3)
    assert parts == {part: 3 * n * usual[part] for part, n in numbers.items()}
    chosen = dict.fromkeys(numbers, "bfloat16") | {"latents": "float64"}
    parts = accounting.cache_parts(config, 10, precision=chosen)
    assert parts == {p: n * (8 if p == "latents" else 2) for p, n in numbers.items()}


def test_precisions_that_cannot_be_are_refused():
    config = KimiK3Config.tiny()
    names = accounting.published_precision(config)
    some = {part: names[part] for part in names if part != "router"}
    for wrong, message in [
        ("int3", "precision: got 'int3' for .*, needs one of .*'mxfp4'"),
        (torch.bfloat16, "precision: got torch.bfloat16, needs one of"),
        (names | {"head": 16}, "precision: got 16 for head, needs one of"),
        (some, r"precision: got nothing for \['router'\], needs a name for each of"),
        (names | {"heads": "float32"}, r"precision: got unknown parts \['heads'\]"),
        (names | {"KDA rates": "mxfp4"}, "mxfp4 for KDA rates, needs groups of 32, not"),
    ]:
        with pytest.raises(ValueError, match=message):
            accounting.weight_bytes(config, wrong)
    with pytest.raises(ValueError, match="precision: got 'int3'"):
        accounting.cache_bytes(config, 1, precision="int3")
    with pytest.raises(ValueError, match="precision: got nothing for"):
        accounting.cache_bytes(config, 1, precision={"state": "float32"})
    with pytest.raises(TypeError, match="config is a OneMemoryConfig; no release of it"):
        accounting.weight_bytes(ONE[0], "published")
    for count in (accounting.weight_bytes, accounting.published_precision):
        with pytest.raises(TypeError, match="config is a str"):
            count("kimi")


def test_serving_is_the_sum_of_its_parts():
    config = KimiK3Config.kimi_k3()
    needs = accounting.serving(config, 100_000, batch=8, weights="published")
    assert needs.weights == accounting.weight_bytes(config, "published")
    assert needs.cache == 8 * accounting.cache_bytes(config, 100_000)
    assert needs.memory == needs.weights + needs.cache
    assert needs.prefill_flops == 8 * accounting.prefill_flops(config, 100_000)
    assert needs.decode_flops == 8 * accounting.decode_flops(config, 100_000)
    in_float32 = accounting.serving(config, 100_000, cache="float32")
    assert in_float32.cache == accounting.cache_bytes(config, 100_000, precision="float32")
    for wrong in (0, config.context_length + 1):
        with pytest.raises(ValueError, match="context"):
            accounting.serving(config, wrong)
