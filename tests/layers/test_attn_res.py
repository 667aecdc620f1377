"""Attention residuals against their formula, and their wiring against the golden Kimi K3."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from llmcourse.layers.attn_res import AttentionResidual, ResidualBlocks
from llmcourse.layers.norm import RMSNorm

GOLDEN = Path(__file__).parents[1] / "golden" / "kimi_k3_tiny"
PREFIX = "language_model.model."
D = 12


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def randn(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def made(eps=1e-5):
    """The layer in float64 with no weight at its start."""
    mix = AttentionResidual(D, eps).double()
    with torch.no_grad():
        mix.query.weight.copy_(randn(1, D, seed=1))
        mix.norm.weight.copy_(randn(D, seed=2))
    return mix


def by_formula(sources, w, norm, eps):
    keys = [s / (s.square().mean(-1, keepdim=True) + eps).sqrt() * norm for s in sources]
    e = [(k * w).sum(-1, keepdim=True).exp() for k in keys]
    return sum(x * s for x, s in zip(e, sources, strict=True)) / sum(e)


@pytest.mark.parametrize("num_sources", [1, 2, 9])
def test_the_mix_is_its_formula_with_gradients(num_sources):
    mix = made(eps=1e-2)
    sources = [randn(2, 5, D, seed=7 + i).requires_grad_() for i in range(num_sources)]
    w, norm = (p.detach().clone().requires_grad_() for p in (mix.query.weight, mix.norm.weight))
    got, expected = mix(sources), by_formula(sources, w[0], norm, 1e-2)
    assert error(got, expected) < 1e-12
    weights = randn(2, 5, D, seed=30)
    ours = torch.autograd.grad(
        (got * weights).sum(), [*sources, mix.query.weight, mix.norm.weight]
    )
    theirs = torch.autograd.grad((expected * weights).sum(), [*sources, w, norm])
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() < 1e-11 * (1 + b.abs().max())


def test_a_single_source_passes_unchanged():
    x = randn(2, 3, D).float()
    assert torch.equal(made().float()([x]), x)


def test_at_the_start_the_mix_is_the_mean():
    sources = [randn(3, D, seed=i) for i in range(4)]
    mix = AttentionResidual(D).double()
    assert error(mix(sources), sum(sources) / 4) < 1e-12
    assert error(mix.weights(sources), torch.full((4, 3), 0.25).double()) < 1e-12


def test_weights_are_what_each_source_counts_for():
    sources, mix = [randn(2, 3, D, seed=i) for i in range(4)], made()
    weights = mix.weights(sources)
    assert weights.shape == (4, 2, 3)
    assert error(weights.sum(0), torch.ones(2, 3).double()) < 1e-12
    by_hand = sum(w[..., None] * s for w, s in zip(weights, sources, strict=True))
    assert error(mix(sources), by_hand) < 1e-12


def test_a_larger_source_is_no_louder_but_for_its_value():
    sources, mix = [randn(2, 3, D, seed=i) for i in range(3)], made(eps=1e-12)
    louder = [sources[0], 100 * sources[1], sources[2]]
    assert error(mix.weights(louder), mix.weights(sources)) < 1e-9


@pytest.mark.parametrize("autocast", [False, True])
def test_the_softmax_over_sources_is_in_float32(autocast):
    sources = [(20 * randn(50, D, seed=i)).bfloat16() for i in range(5)]
    mix = made().bfloat16()
    exact = AttentionResidual(D)
    exact.load_state_dict({n: p.float() for n, p in mix.state_dict().items()})
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        got, weights = mix(sources), mix.weights(sources)
    assert got.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
    assert torch.equal(got, exact([s.float() for s in sources]).bfloat16())


def test_in_the_full_form_every_output_is_a_source():
    x, outputs = randn(2, 3, D), [randn(2, 3, D, seed=1 + i) for i in range(5)]
    residuals = ResidualBlocks(x, block_size=1)
    for i, y in enumerate(outputs):
        residuals.add(y)
        assert len(residuals.sources) == i + 2
    for got, expected in zip(residuals.sources, [x, *outputs], strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("layers", [1, 2, 3, 7])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_blocks_are_those_of_the_layer_loop(layers, block):
    """Kimi K3's loop over layers, written out with the step that closes a block."""
    x = randn(2, D)
    outputs = [randn(2, D, seed=1 + i) for i in range(2 * layers)]
    residuals = ResidualBlocks(x, block_size=2 * block)
    prefix, blocks = x, []

    def same(expected):
        assert len(residuals.sources) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(residuals.sources, expected, strict=True))

    for i in range(layers):
        same([*blocks, prefix])  # attention reads before its block opens
        if i % block == 0:
            blocks, prefix = [*blocks, prefix], None
        a, m = outputs[2 * i], outputs[2 * i + 1]
        prefix = a if prefix is None else prefix + a
        residuals.add(a)
        same([*blocks, prefix])
        prefix = prefix + m
        residuals.add(m)
    same([*blocks, prefix])


def test_kimi_k3_ends_with_nine_sources():
    residuals = ResidualBlocks(torch.zeros(1), block_size=24)
    for _ in range(2 * 93):
        residuals.add(torch.ones(1))
    assert [s.item() for s in residuals.sources] == [0, *[24] * 7, 18]


def test_what_cannot_be_added_or_mixed_is_refused():
    residuals = ResidualBlocks(torch.zeros(2, D), block_size=2)
    with pytest.raises(ValueError, match=r"output: got \[1, 12\], needs \[2, 12\]"):
        residuals.add(torch.zeros(1, D))
    assert len(residuals.sources) == 1
    with pytest.raises(ValueError, match="block_size: got 0"):
        ResidualBlocks(torch.zeros(2, D), block_size=0)
    with pytest.raises(ValueError, match="sources: got none"):
        AttentionResidual(D)([])


@pytest.fixture(scope="module")
def golden():
    config = json.loads((GOLDEN / "config.json").read_text())["text_config"]
    return config, load_file(GOLDEN / "model.safetensors"), load_file(GOLDEN / "io.safetensors")


def read(weights, mix_name, norm_name, sources):
    """What a sublayer of the golden model is given: its norm of its mix of the sources."""
    width = sources[0].shape[-1]
    mix, norm = AttentionResidual(width), RMSNorm(width)
    state = {"query.weight": weights[f"{PREFIX}{mix_name}_proj.weight"]}
    mix.load_state_dict(state | {"norm.weight": weights[f"{PREFIX}{mix_name}_norm.weight"]})
    norm.load_state_dict({"weight": weights[f"{PREFIX}{norm_name}.weight"]})
    with torch.no_grad():
        return norm(mix(sources))


def test_the_wiring_of_the_golden_k3(golden):
    """Recorded outputs go in; recorded inputs and running sums must come out.

    1e-5 of the largest value, as for sublayers; a wrong wiring is off by more than 0.1.
    """
    config, weights, io = golden
    names = ("self_attention_res", "input_layernorm"), ("mlp_res", "post_attention_layernorm")
    kinds = ("self_attn", "mlp")
    embedding = weights[f"{PREFIX}embed_tokens.weight"][io["input_ids"]]
    residuals = ResidualBlocks(embedding, 2 * config["attn_res_block_size"])
    for i in range(config["num_hidden_layers"]):
        total = io[f"layers.{i}.prefix_sum"]
        opens = i % config["attn_res_block_size"] == 0
        for kind, (mix, norm) in zip(kinds, names, strict=True):
            name, start = f"layers.{i}.{kind}", f"layers.{i}."
            if i in (0, 1, 3):
                got = read(weights, start + mix, start + norm, residuals.sources)
                assert error(got, io[f"{name}.in"]) < 1e-5, name
                output = io[f"{name}.out"]
            elif kind == "self_attn":  # not recorded: what the layer as a whole added
                output = total if opens else total - residuals.prefix
            else:
                output = torch.zeros_like(total)
            residuals.add(output)
        assert error(residuals.prefix, total) < 1e-5, i
    final = read(weights, "output_attn_res", "norm", residuals.sources)
    assert error(final, io["final_hidden"]) < 1e-5
    plain = embedding + sum(residuals.sources[1:])
    assert error(read(weights, "output_attn_res", "norm", [plain]), io["final_hidden"]) > 0.1
