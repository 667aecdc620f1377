"""Latent attention against public implementations, recorded numbers, and its own two forms."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import DeepseekV3Config, KimiLinearConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.kimi_linear import modeling_kimi_linear as kimi

from llmcourse.cache import KVCache, LatentCache
from llmcourse.layers.mla import PUBLIC_NAMES, MultiHeadLatentAttention, read_once, rotate
from llmcourse.ops import softmax

GOLDEN = Path(__file__).parents[1] / "golden" / "kimi_k3_tiny"
D, H, R, K, S, V = 24, 3, 10, 7, 4, 5
KINDS = {
    "Kimi Linear's": {},
    "Kimi K3's": {"query_rank": 9, "output_gate": True},
    "DeepSeek's": {"query_rank": 9, "rotary": 100.0},
    "rotary, gated": {"rotary": 10_000.0, "output_gate": True},
    "no shared channels": {"shared_key_width": 0},
    "narrow heads": {"kv_rank": 30, "key_width": 2, "value_width": 1},
}


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def randn(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def shuffled(layer, seed=0):
    """The layer in float64 with no weight at its start."""
    layer = layer.double()
    with torch.no_grad():
        for i, p in enumerate(layer.parameters()):
            p.copy_(randn(*p.shape, seed=seed + i) / 2)
    return layer


def made(kind, seed=0):
    sizes = {"kv_rank": R, "key_width": K, "shared_key_width": S, "value_width": V}
    return shuffled(MultiHeadLatentAttention(D, H, **sizes | KINDS[kind]), seed)


def loaded(layer, weights):
    """The layer with the weights of a public one, named and shaped as in checkpoints."""
    ours = {}
    for name in layer.state_dict():
        part, kind = name.split(".")
        ours[name] = weights.pop(f"{PUBLIC_NAMES[part]}.{kind}")
    assert not weights, f"not read: {[*weights]}"
    layer.load_state_dict(ours)
    return layer


def gradients(y, x, layer):
    """Of one scalar, by x and by every weight: public name -> gradient."""
    names = []
    for name, _ in layer.named_parameters():
        part, kind = name.split(".")
        names.append(f"{PUBLIC_NAMES.get(part, part)}.{kind}")
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad((y * randn(*y.shape, seed=9).to(y)).sum(), inputs)
    return dict(zip(["x", *names], found, strict=True))


def assert_alike(got, expected, tolerance):
    assert got.keys() == expected.keys()
    for name, g in got.items():
        assert expected[name].abs().max() > 0, f"no gradient reaches {name}"
        assert error(g, expected[name]) < tolerance, name


# The rule written out for one token and one head, from the paper's equations alone.


def turned(x, t, theta):
    """Neighbouring channels as complex numbers, each turned by its own angle."""
    z = torch.complex(x[::2], x[1::2])
    speeds = torch.tensor([theta ** (-2 * i / S) for i in range(S // 2)], dtype=torch.float64)
    return torch.view_as_real(z * torch.polar(torch.ones_like(speeds), t * speeds)).flatten()


def normed(x, weight):
    return x / (x.square().mean() + 1e-6).sqrt() * weight


def by_formula(layer, x):
    """One sequence [T, D], token by token and head by head."""
    K, S, V = layer.widths
    R, theta = layer.rank, layer.rotary
    latents, shared, outputs = [], [], []
    for t, token in enumerate(x):
        down = layer.latent_down.weight @ token
        latents.append(normed(down[:R], layer.latent_norm.weight))
        shared.append(turned(down[R:], t, theta) if theta else down[R:])
        if layer.query_rank is None:
            q = layer.query.weight @ token
        else:
            low = normed(layer.query_down.weight @ token, layer.query_norm.weight)
            q = layer.query_up.weight @ low
        heads = []
        for h in range(layer.num_heads):
            mine = q[h * (K + S) : (h + 1) * (K + S)]
            ours = turned(mine[K:], t, theta) if theta else mine[K:]
            up = layer.latent_up.weight[h * (K + V) : (h + 1) * (K + V)]
            scores = [
                (mine[:K] @ (up[:K] @ c) + ours @ s) / (K + S) ** 0.5
                for c, s in zip(latents, shared, strict=True)
            ]
            values = torch.stack([up[K:] @ c for c in latents])
            heads.append(torch.stack(scores).softmax(0) @ values)
        o = torch.cat(heads)
        if layer.gate is not None:
            o = o / (1 + (-layer.gate.weight @ token).exp())
        outputs.append(layer.out.weight @ o)
    return torch.stack(outputs)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_are_the_formula_with_gradients(kind, absorbed):
    layer, x = made(kind), randn(2, 6, D, seed=5).requires_grad_()
    expected = torch.stack([by_formula(layer, sequence) for sequence in x])
    got = layer(x, absorbed=absorbed)
    assert error(got, expected) < 1e-10
    assert_alike(gradients(got, x, layer), gradients(expected, x, layer), 1e-10)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("T", [1, 2, 65])
@pytest.mark.parametrize("kind", KINDS)
def test_the_two_forms_are_equal_in_outputs_and_gradients(kind, T, dtype, tolerance):
    layer = made(kind).to(dtype)
    x = randn(3, T, D, seed=1).to(dtype).requires_grad_()
    explicit, absorbed = (layer(x, absorbed=form) for form in (False, True))
    assert error(absorbed, explicit) < tolerance
    ours, theirs = gradients(absorbed, x, layer), gradients(explicit, x, layer)
    for name, g in theirs.items():  # of a single token nothing depends on the scores
        # a gradient that is zero but for rounding is measured against that of x
        size = max(g.abs().max().item(), 1e-2 * theirs["x"].abs().max().item())
        assert (ours[name] - g).abs().max() < tolerance * size, name


@pytest.mark.parametrize("absorbed", [None, False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(cuts=st.sets(st.integers(1, 39)), T=st.integers(1, 40))
@settings(max_examples=8, deadline=None)
def test_any_pieces_with_a_memory_are_one_full_pass(kind, absorbed, cuts, T):
    layer, x = made(kind), randn(2, T, D, seed=1)
    edges = [0, *sorted(c for c in cuts if c < T), T]
    memory = layer.new_memory(2)
    with torch.no_grad():
        full = layer(x, absorbed=False)
        pieces = [
            layer(x[:, a:b], memory, absorbed=absorbed) for a, b in itertools.pairwise(edges)
        ]
    assert error(torch.cat(pieces, dim=1), full) < 1e-10
    assert memory.length == T
    assert memory.bytes == 2 * T * (layer.rank + layer.widths[1]) * 8  # latents only


@pytest.mark.parametrize("kind", KINDS)
def test_one_prompt_continued_in_several_ways(kind):
    layer, x = made(kind), randn(2, 9, D, seed=2)
    ways = randn(3, 5, D, seed=3)
    memory, parents = layer.new_memory(2), torch.tensor([1, 0, 1])
    with torch.no_grad():
        layer(x, memory)
        twin = memory.copy()
        twin.reorder(parents)
        steps = [layer(ways[:, t : t + 1], twin) for t in range(5)]
        expected = layer(torch.cat([x[parents], ways], dim=1), absorbed=False)
        again = layer(ways[:2], memory)
    assert error(torch.cat(steps, dim=1), expected[:, 9:]) < 1e-10
    plain = layer(torch.cat([x, ways[:2]], dim=1), absorbed=False)
    assert error(again, plain[:, 9:]) < 1e-10


@pytest.mark.parametrize("absorbed", [False, True])
def test_what_follows_does_not_change_what_was_said(absorbed):
    layer, x = made("DeepSeek's"), randn(1, 20, D)
    full = layer(x, absorbed=absorbed)
    for t in (1, 10, 19):
        assert error(layer(x[:, :t], absorbed=absorbed), full[:, :t]) < 1e-10


def test_the_form_is_chosen_by_its_multiplications():
    layer = MultiHeadLatentAttention(
        64, 2, kv_rank=512, key_width=128, shared_key_width=64, value_width=128
    )
    assert layer.absorbed_is_cheaper(1, 4096) and layer.absorbed_is_cheaper(100, 4096)
    assert not layer.absorbed_is_cheaper(4096, 4096) and not layer.absorbed_is_cheaper(200, 400)
    forms = []
    layer.read_explicit = lambda q, page: forms.append("explicit") or q[..., :128]
    layer.read_absorbed = lambda q, page: forms.append("absorbed") or q[..., :128]
    memory = layer.new_memory()
    for T in (300, 1, 16, 300):
        layer(torch.zeros(1, T, 64), memory)
    assert forms == ["explicit", "absorbed", "absorbed", "explicit"]


# Kimi K3's golden files: an independent public implementation run in float32.


@pytest.fixture(scope="module")
def golden():
    start = "language_model.model.layers.3.self_attn."
    weights = load_file(GOLDEN / "model.safetensors")
    mine = {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}
    sizes = {"kv_rank": 16, "key_width": 12, "shared_key_width": 4, "value_width": 10}
    layer = MultiHeadLatentAttention(40, 4, **sizes, query_rank=24, output_gate=True)
    io = load_file(GOLDEN / "io.safetensors")
    return loaded(layer, mine), io["layers.3.self_attn.in"], io["layers.3.self_attn.out"]


@pytest.mark.parametrize("absorbed", [False, True])
@torch.no_grad()
def test_kimi_k3s_recorded_sublayer(golden, absorbed):
    layer, x, expected = golden
    assert error(layer(x, absorbed=absorbed), expected) < 1e-5


@torch.no_grad()
def test_kimi_k3s_recorded_sublayer_in_pieces_and_token_by_token(golden):
    layer, x, expected = golden
    memory = layer.new_memory(2)
    pieces = [layer(piece, memory) for piece in x.split([40, 3, *[1] * 32], dim=1)]
    assert error(torch.cat(pieces, dim=1), expected) < 1e-5


@torch.no_grad()
def test_without_its_gate_the_recorded_sublayer_is_missed(golden):
    layer, x, expected = golden
    gate, layer.gate = layer.gate, None
    missed = error(layer(x), expected)
    layer.gate = gate
    assert missed > 0.1


# transformers


def public_sizes(query_rank):
    return {
        "hidden_size": D,
        "num_attention_heads": H,
        "num_key_value_heads": H,
        "q_lora_rank": query_rank,
        "kv_lora_rank": R,
        "qk_nope_head_dim": K,
        "qk_rope_head_dim": S,
        "v_head_dim": V,
        "attn_implementation": "eager",
    }


def causal(T):
    return torch.full((T, T), float("-inf"), dtype=torch.float64).triu(1)


def as_theirs(theirs, **options):
    sizes = {"kv_rank": R, "key_width": K, "shared_key_width": S, "value_width": V}
    layer = MultiHeadLatentAttention(D, H, **sizes, **options).double()
    return loaded(layer, theirs.state_dict())


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("query_rank", [None, 9])
def test_transformers_deepseek_v3_with_gradients(query_rank, absorbed):
    config = DeepseekV3Config(**public_sizes(query_rank), max_position_embeddings=64)
    theirs = shuffled(deepseek.DeepseekV3Attention(config, 0))
    theta = config.rope_parameters["rope_theta"]
    ours = as_theirs(theirs, query_rank=query_rank, rotary=theta)
    assert config.rope_interleave
    T, x = 13, randn(2, 13, D, seed=5).requires_grad_()
    cos_sin = deepseek.DeepseekV3RotaryEmbedding(config)(x, torch.arange(T)[None])
    expected = theirs(x, position_embeddings=cos_sin, attention_mask=causal(T))[0]
    got = ours(x, absorbed=absorbed)
    # They take the cosine of a float32 angle, up to T = 13, and the softmax in float32.
    assert error(got, expected) < 2e-6
    assert_alike(gradients(got, x, ours), theirs_gradients(expected, x, theirs), 1e-5)


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("query_rank", [None, 9])
def test_transformers_kimi_linear_with_gradients(query_rank, absorbed):
    config = KimiLinearConfig(**public_sizes(query_rank))
    theirs = shuffled(kimi.KimiLinearAttention(config, 0))
    ours = as_theirs(theirs, query_rank=query_rank)
    T, x = 13, randn(2, 13, D, seed=5).requires_grad_()
    expected = theirs(x, attention_mask=causal(T))[0]
    got = ours(x, absorbed=absorbed)
    assert error(got, expected) < 1e-6  # their softmax is in float32
    assert_alike(gradients(got, x, ours), theirs_gradients(expected, x, theirs), 1e-5)


def theirs_gradients(y, x, theirs):
    inputs = {"x": x, **dict(theirs.named_parameters())}
    found = torch.autograd.grad((y * randn(*y.shape, seed=9)).sum(), [*inputs.values()])
    return dict(zip(inputs, found, strict=True))


# The rotary embedding


def test_rotation_is_the_complex_one():
    x = randn(2, 7, H, S)
    got = rotate(x, 5, 100.0)
    for b, t, h in itertools.product(range(2), range(7), range(H)):
        assert error(got[b, t, h], turned(x[b, t, h], 5 + t, 100.0)) < 1e-12


def test_rotated_scores_depend_on_the_distance_only():
    q, k = randn(2, 1, 1, 1, 8)
    scores = [
        (rotate(q, t + 3, 1e4) * rotate(k, t, 1e4)).sum().item() for t in (0, 1, 40, 999_000)
    ]
    # An angle of 10^6 in float64 has an error of 10^6 * 2^-53.
    assert scores == pytest.approx([scores[0]] * 4, rel=1e-9)
    other = (rotate(q, 2, 1e4) * rotate(k, 0, 1e4)).sum().item()
    assert abs(other - scores[0]) > 1e-3


def test_late_positions_are_as_sharp_as_early_ones_in_float32():
    x = randn(1, 1, 1, 8)
    assert error(rotate(x.float(), 1_000_000, 1e4), rotate(x, 1_000_000, 1e4)) < 1e-6


def test_without_rotation_the_order_of_the_past_is_not_seen():
    x = randn(1, 9, D)
    order = torch.tensor([4, 2, 7, 0, 1, 6, 3, 5, 8])
    for kind, sees in [("Kimi Linear's", False), ("DeepSeek's", True)]:
        last, other = (made(kind)(y)[:, -1] for y in (x, x[:, order]))
        assert (error(other, last) > 1e-3) == sees


# Precision, devices, and what is refused


def test_bfloat16_in_bfloat16_out_and_close():
    layer, x = made("DeepSeek's"), randn(2, 12, D).bfloat16()
    expected = layer(x.double())
    half = made("DeepSeek's").bfloat16()
    memory = half.new_memory(2)
    with torch.no_grad():
        pieces = [half(y, memory) for y in x.split([7, 1, 4], dim=1)]
    got = torch.cat(pieces, dim=1)
    assert (got.dtype, memory.bytes) == (torch.bfloat16, 2 * 12 * (R + S) * 2)
    assert error(got.double(), expected) < 0.1  # 8 bits, through five products


@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
def test_one_token_reads_in_bfloat16_what_several_read(how):
    """`read_once` against `softmax.parallel`, both from the same page, in half precision."""
    q, page = randn(2, 1, H, R + S).float(), randn(2, 9, R + S, seed=1).float()
    expected = softmax.parallel(q, page[:, :, None], page[:, :, None, :R], scale=1.0)
    if how == "bfloat16":
        got = read_once(q.bfloat16(), page.bfloat16(), R)
        assert got.dtype == torch.bfloat16
        assert error(got.float(), expected) < 2e-2
    else:
        with torch.autocast("cpu", torch.bfloat16):
            got = read_once(q, page, R)
        assert got.dtype == torch.float32 and error(got, expected) < 1e-6


def test_on_the_meta_device_shapes_alone():
    with torch.device("meta"):
        layer = MultiHeadLatentAttention(
            7168,
            96,
            kv_rank=512,
            key_width=128,
            shared_key_width=64,
            value_width=128,
            query_rank=1536,
            output_gate=True,
        )
    assert layer(torch.empty(1, 5, 7168, device="meta")).shape == (1, 5, 7168)
    assert layer.new_memory().append(
        torch.empty(1, 5, 512, device="meta"), torch.empty(1, 5, 64, device="meta")
    ).shape == (1, 5, 576)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kv_rank": 0}, "kv_rank: got 0"),
        ({"key_width": 1.5}, "key_width: got 1.5"),
        ({"value_width": 0}, "value_width: got 0"),
        ({"shared_key_width": -1}, "shared_key_width: got -1"),
        ({"query_rank": 0}, "query_rank: got 0"),
        ({"rotary": True}, "rotary: got True, needs a theta above 1, or None"),
        ({"rotary": 1.0}, "rotary: got 1.0"),
        ({"rotary": 1e4, "shared_key_width": 3}, "shared_key_width: got 3, needs an even"),
        ({"rotary": 1e4, "shared_key_width": 0}, "shared_key_width: got 0, needs an even"),
        ({"norm_eps": 0}, "norm_eps: got 0"),
    ],
)
def test_sizes_that_no_layer_has_are_refused(change, message):
    sizes = {"kv_rank": R, "key_width": K, "shared_key_width": S, "value_width": V}
    with pytest.raises(ValueError, match=message):
        MultiHeadLatentAttention(D, H, **sizes | change)


def test_another_memory_is_refused_and_left_alone():
    layer, x = made("Kimi K3's"), randn(2, 3, D)
    wrong = [
        (layer.new_memory(1), r"latents: got \[2, 3, 10\], needs \[B, T, R\] = \[1, T, 10\]"),
        (LatentCache(2, R, S + 1), r"shared: got \[2, 3, 4\], needs \[B, T, S\] = \[2, T, 5\]"),
        (LatentCache(2, R, S, capacity=2), r"cache: got 0 \+ 3 tokens"),
        (KVCache(2, H, K, V), "memory: got KVCache, needs a LatentCache"),
        ("page", "memory: got str"),
    ]
    for memory, message in wrong:
        with pytest.raises(ValueError, match=message):
            layer(x, memory)
        assert getattr(memory, "length", 0) == 0


def test_rotation_does_not_depend_on_the_default_device():
    x = torch.ones(1, 3, 2, 4)
    expected = rotate(x, 5, 10_000.0)
    with torch.device("meta"):
        assert torch.equal(rotate(x, 5, 10_000.0), expected)
