"""MXFP4 against its specification, one number at a time in Python's own arithmetic."""

import dataclasses
import json
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from llmcourse.models import KimiK3, KimiK3Config, mxfp4

CONFIG = dataclasses.replace(KimiK3Config.tiny(), vocab_size=64, width=48, num_experts=6)


def some_weights(rows=3, groups=2, seed=0, spread=8.0, dtype=torch.float32):
    """Matrices whose groups of 32 have sizes from 2**-spread to 2**spread."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, groups, 32, generator=g, dtype=torch.float64)
    sizes = 2 ** (spread * (2 * torch.rand(rows, groups, 1, generator=g) - 1))
    return (w * sizes).flatten(1).to(dtype)


def by_specification(weights):
    """OCP MX v1.0, section 6.3, for 32 numbers: their values, exactly, and the exponent."""
    largest = max(abs(Fraction(w)) for w in weights)
    exponent = -127
    while exponent < 127 and largest >= Fraction(2) ** (exponent + 3):
        exponent += 1  # ends at floor(log2(largest)) - 2
    unit = Fraction(2) ** exponent
    return [nearest(Fraction(w), unit) for w in weights], exponent


def nearest(w, unit):
    """The nearest of all values; of two that are as near, the one with the even code."""
    values = [Fraction(x) * unit for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    codes = range(8)
    best = min(codes, key=lambda code: (abs(abs(w) - values[code]), code % 2))
    return -values[best] if w < 0 else values[best]


def check(weight):
    packed, scale = mxfp4.quantise(weight)
    got = mxfp4.dequantise(packed, scale, torch.float64)
    groups = weight.double().unflatten(-1, (-1, 32))
    for row, (values, exponents) in enumerate(
        zip(groups.tolist(), scale.tolist(), strict=True)
    ):
        for i, (group, e) in enumerate(zip(values, exponents, strict=True)):
            expected, exponent = by_specification(group)
            assert e == exponent + 127
            assert got[row, 32 * i : 32 * i + 32].tolist() == [float(x) for x in expected]


@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.0, 3.0, 30.0, 120.0]))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_weight_becomes_the_nearest_value(dtype, seed, spread):
    spread = min(spread, 3.0) if dtype == torch.float16 else spread
    check(some_weights(2, 1, seed, spread, dtype))


@pytest.mark.parametrize("power", [-130, -126, -20, 0, 1, 40, 124])
def test_middles_go_to_the_even_code_and_beyond_six_is_six(power):
    quarters = torch.arange(0, 32) / 4  # 0 to 7.75: every value and every middle between two
    check(torch.ldexp(quarters, torch.tensor(power))[None].double())
    check(-torch.ldexp(quarters, torch.tensor(power))[None])


def test_the_scale_is_that_of_the_largest_of_32():
    for largest, exponent in [
        (1.0, -2),
        (3.99, -1),
        (4.0, 0),
        (7.99, 0),
        (8.0, 1),
        (2.0**-60, -62),
    ]:
        weight = torch.zeros(1, 64)
        weight[0, 5] = -largest
        _, scale = mxfp4.quantise(weight)
        assert scale.tolist() == [[exponent + 127, 0]]  # nothing but zeros has the smallest


def test_zeros_keep_their_signs():
    weight = torch.zeros(1, 32)
    weight[0, 1] = -0.0
    packed, scale = mxfp4.quantise(weight)
    got = mxfp4.dequantise(packed, scale)
    assert packed.tolist() == [[0x80] + [0] * 15] and not got.any()
    assert got.signbit().nonzero().tolist() == [[0, 1]]


def test_what_is_too_small_for_any_scale_becomes_zero():
    tiny = torch.tensor([2.0**-149, 2.0**-129, 2.0**-128, 1.5 * 2.0**-127] * 8)[None]
    got = mxfp4.dequantise(*mxfp4.quantise(tiny), torch.float64)
    assert got[0, :4].tolist() == [0.0, 0.0, 2.0**-128, 1.5 * 2.0**-127]
    check(tiny)


def test_what_is_too_large_for_any_scale_becomes_the_largest_value():
    got = mxfp4.dequantise(
        *mxfp4.quantise(torch.full((1, 32), -1e300, dtype=torch.float64)), torch.float64
    )
    assert (got == -6 * 2.0**127).all()
    check(torch.full((1, 32), torch.finfo(torch.float32).max))


@given(seed=st.integers(0, 10**6), low=st.integers(0, 254), high=st.integers(0, 254))
@settings(max_examples=60, deadline=None)
def test_what_was_in_mxfp4_comes_back_exactly(seed, low, high):
    g = torch.Generator().manual_seed(seed)
    low, high = sorted((low, high))
    packed = torch.randint(256, (4, 32), generator=g).to(torch.uint8)
    scale = torch.randint(low, high + 1, (4, 2), generator=g).to(torch.uint8)
    packed[0] &= 0b10011001  # a group without large values: another scale, the same numbers
    weight = mxfp4.dequantise(packed, scale, torch.float64)
    again = mxfp4.dequantise(*mxfp4.quantise(weight), torch.float64)
    assert torch.equal(again, weight) and torch.equal(again.signbit(), weight.signbit())


def test_codes_and_scales_come_back_where_a_value_of_4_or_6_says_the_scale():
    packed = torch.arange(256).repeat(1, 1).to(torch.uint8)  # every byte; groups of 16 of them
    packed[0, ::16] = 0x17
    scale = torch.arange(100, 116).to(torch.uint8)[None]
    twin = mxfp4.quantise(mxfp4.dequantise(packed, scale))
    assert torch.equal(twin[0], packed) and torch.equal(twin[1], scale)


@pytest.mark.parametrize(
    "weight, message",
    [
        (torch.zeros(2, 33), r"weight: got \[2, 33\], needs \[O, I\] with I a multiple of 32"),
        (torch.zeros(2, 16), r"weight: got \[2, 16\]"),
        (torch.zeros(32), r"weight: got \[32\]"),
        (torch.zeros(0, 32), r"weight: got \[0, 32\]"),
        (torch.zeros(2, 32, dtype=torch.int32), r"weight: got torch\.int32"),
        (torch.full((2, 32), math.inf), "weight: got inf or nan, needs finite numbers"),
        (torch.full((2, 32), -math.inf), "weight: got inf or nan"),
        (torch.tensor([[math.nan] + [0.0] * 31]), "weight: got inf or nan"),
        (torch.empty(2, 32, device="meta"), "weight: got a tensor on the meta device"),
        ([[0.0] * 32], "weight: got list, needs a tensor"),
    ],
)
def test_what_mxfp4_cannot_hold_is_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        mxfp4.quantise(weight)


# Kimi K3 with its experts in MXFP4


@pytest.fixture
def model():
    torch.manual_seed(0)
    return KimiK3(CONFIG)


@pytest.mark.parametrize("max_shard_bytes", [50_000, 10**9])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_experts_come_back_as_what_mxfp4_makes_of_them(tmp_path, model, dtype, max_shard_bytes):
    model.save_pretrained(tmp_path, mxfp4_experts=True, max_shard_bytes=max_shard_bytes)
    twin = KimiK3.from_pretrained(tmp_path, dtype=dtype)
    assert twin.config == model.config
    kept = dict(twin.state_dict())
    for name, tensor in model.state_dict().items():
        if ".experts." in name:
            rounded = [mxfp4.dequantise(*mxfp4.quantise(x)) for x in tensor]
            assert torch.equal(kept[name], torch.stack(rounded).to(dtype or torch.float32)), (
                name
            )
            assert not torch.equal(kept[name], tensor.to(kept[name])), name
        else:
            assert torch.equal(kept[name], tensor.to(kept[name].dtype)), name
    assert sum(".experts." in name for name in kept) == 3 * 4


def test_saving_what_was_rounded_changes_nothing_more(tmp_path, model):
    model.save_pretrained(tmp_path / "once", mxfp4_experts=True)
    KimiK3.from_pretrained(tmp_path / "once").save_pretrained(
        tmp_path / "twice", mxfp4_experts=True
    )
    once, twice = (KimiK3.from_pretrained(tmp_path / x).state_dict() for x in ("once", "twice"))
    assert all(torch.equal(once[name], twice[name]) for name in once)


def test_the_layout_is_the_published_one(tmp_path, model):
    model.save_pretrained(tmp_path, mxfp4_experts=True)
    tensors = load_file(tmp_path / "model.safetensors")
    experts = [name for name in tensors if ".experts." in name]
    assert len(experts) == 4 * 6 * 3 * 2
    first = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight"
    assert tensors[f"{first}_packed"].shape == (96, 32) and f"{first}_scale" in experts
    assert {tensors[name].dtype for name in experts} == {torch.uint8}
    assert {x.dtype for name, x in tensors.items() if name not in experts} == {torch.float32}
    scheme = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert scheme["format"] == "mxfp4-pack-quantized"
    assert scheme["config_groups"]["group_0"]["weights"]["group_size"] == 32
    model.save_pretrained(tmp_path)
    assert "quantization_config" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("field", ["latent_width", "expert_width"])
def test_widths_that_are_no_multiples_of_32_are_refused_before_anything_is_written(
    tmp_path, field
):
    model = KimiK3(dataclasses.replace(CONFIG, **{field: 40}))
    message = rf"{field}: got 40, needs a multiple of 32 for MXFP4, or mxfp4_experts=False"
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path / "new", mxfp4_experts=True)
    assert not (tmp_path / "new").exists()
    model.save_pretrained(tmp_path / "new")


def test_an_expert_that_is_not_finite_is_named_before_anything_is_written(tmp_path, model):
    with torch.no_grad():
        model.layers[2].ffn.experts.up[3, 0, 0] = math.nan
    with pytest.raises(
        ValueError, match=r"layers\.2\..*experts\.3\.w3\.weight: weight: got inf"
    ):
        model.save_pretrained(tmp_path / "new", mxfp4_experts=True)
    assert not (tmp_path / "new").exists()
