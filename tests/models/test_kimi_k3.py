"""Kimi K3 against the golden model (an independent implementation's record), and its laws."""

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from llmcourse import accounting, generate
from llmcourse.layers.norm import RMSNorm
from llmcourse.models import CheckpointError, mxfp4
from llmcourse.models.kimi_k3 import KimiK3, KimiK3Config, every_fourth_and_last

GOLDEN = Path(__file__).parents[1] / "golden" / "kimi_k3_tiny"
# Another shape than the golden one: no size is another's, and experts that fit MXFP4's groups.
CONFIG = KimiK3Config(
    vocab_size=61,
    width=24,
    num_layers=6,
    mla_layers=(2, 5),
    kda_heads=3,
    kda_head_width=6,
    mla_heads=2,
    query_rank=11,
    kv_rank=10,
    key_width=7,
    shared_key_width=5,
    value_width=9,
    dense_width=28,
    latent_width=32,
    expert_width=64,
    num_experts=5,
    num_active=2,
    block_size=4,
    num_shared=3,
    num_dense=2,
    conv_size=3,
)


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def some_ids(B=2, T=13, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, CONFIG.vocab_size, (B, T), generator=g)


def ours(dtype=torch.float64, config=CONFIG, seed=0):
    """A model with no parameter or bias at its start, where zeros and ones hide mistakes."""
    torch.manual_seed(seed)
    model = KimiK3(config).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, dtype=p.dtype))
        for bias in model.buffers():
            bias.copy_(0.2 * torch.randn(bias.shape, dtype=bias.dtype))
    return model


@pytest.fixture(scope="module")
def recorded():
    return load_file(GOLDEN / "io.safetensors")


# The golden model


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1.5e-3), (torch.float32, 1e-2)], ids=str
)
def test_logits_are_those_of_the_golden_model(recorded, dtype, tolerance):
    # Random weights amplify the roundings of the record, in float32, through nine layers.
    # Logits have a standard deviation of 1; a wrong wiring is off by more than 0.1.
    model = KimiK3.from_pretrained(GOLDEN, dtype=dtype)
    with torch.no_grad():
        logits = model(recorded["input_ids"])
    assert logits.dtype == dtype
    assert (logits - recorded["logits"]).abs().max() < tolerance


def test_running_sums_and_the_last_hidden_state_are_those_of_the_golden_model(recorded):
    model, sums, hidden = KimiK3.from_pretrained(GOLDEN, dtype=torch.float64), [], []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, _: sums.append(args[0].prefix))
    model.final_norm.register_forward_hook(lambda module, args, y: hidden.append(y))
    with torch.no_grad():
        model(recorded["input_ids"])
    assert len(sums) == 9
    for i, got in enumerate(sums):
        # The record's own roundings, amplified as in its logits; 2e-4 were seen.
        assert error(got, recorded[f"layers.{i}.prefix_sum"]) < 1e-3, i
    assert error(hidden[0], recorded["final_hidden"]) < 1e-3


@pytest.mark.parametrize("layer", [0, 1, 3])  # dense and KDA, experts and KDA, experts and MLA
@pytest.mark.parametrize("ours, theirs", [("attention", "self_attn"), ("ffn", "mlp")])
def test_every_kind_of_sublayer_is_that_of_the_golden_model(recorded, layer, ours, theirs):
    sublayer = getattr(KimiK3.from_pretrained(GOLDEN).layers[layer], ours)
    name = f"layers.{layer}.{theirs}"
    with torch.no_grad():
        assert error(sublayer(recorded[f"{name}.in"]), recorded[f"{name}.out"]) < 1e-5


def test_the_golden_model_reads_in_pieces_and_token_by_token(recorded):
    model = KimiK3.from_pretrained(GOLDEN, dtype=torch.float64)
    ids, cache = recorded["input_ids"], model.new_cache(batch=2)
    edges = [0, 1, 3, 40, *range(41, 76)]
    with torch.no_grad():
        pieces = [model(ids[:, a:b], cache) for a, b in itertools.pairwise(edges)]
        assert error(torch.cat(pieces, dim=1), model(ids)) < 1e-10


# Laws


@given(cuts=st.sets(st.integers(1, 20)), T=st.integers(1, 21))
@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-3)])
def test_any_pieces_with_a_cache_give_the_logits_of_one_full_pass(dtype, tolerance, cuts, T):
    model, ids = ours(dtype), some_ids(2, T)
    edges = [0, *sorted(cut for cut in cuts if cut < T), T]
    cache = model.new_cache(batch=2)
    with torch.no_grad():
        full = model(ids)
        pieces = [model(ids[:, a:b], cache) for a, b in itertools.pairwise(edges)]
    assert cache.length == T
    assert error(torch.cat(pieces, dim=1), full) < tolerance


@given(T=st.integers(2, 30), t=st.integers(1, 29))
@settings(max_examples=10, deadline=None)
def test_causality_the_logits_of_a_prefix_do_not_feel_what_follows(T, t):
    model, ids = ours(), some_ids(1, T)
    t = min(t, T - 1)
    with torch.no_grad():
        assert error(model(ids[:, :t]), model(ids)[:, :t]) < 1e-10


def test_sequences_of_a_batch_do_not_feel_each_other():
    model, ids = ours(), some_ids(3, 9)
    with torch.no_grad():
        together = model(ids)
        for row in range(3):
            assert error(together[row : row + 1], model(ids[row : row + 1])) < 1e-10


def test_a_prompt_is_continued_in_several_ways():
    model, ids = ours(), some_ids(3, 14)
    prompt = ids[:1, :6].expand(2, -1)
    with torch.no_grad():
        cache = model.new_cache(batch=2)
        model(prompt, cache)
        twin = cache.copy()
        cache.reorder(torch.tensor([1, 0, 1]))
        got = model(ids[:, 6:], cache)
        assert error(
            got, model(torch.cat([prompt[:1].expand(3, -1), ids[:, 6:]], 1))[:, 6:]
        ) < (1e-10)
        other = model(ids[1:, 8:], twin)
        full = model(torch.cat([prompt, ids[1:, 8:]], 1))
        assert error(other, full[:, 6:]) < 1e-10
    assert (cache.length, twin.length) == (14, 12)


@pytest.mark.parametrize("num_dense", [0, CONFIG.num_layers])
@pytest.mark.parametrize(
    "changes, least",
    [
        (dict(block_size=3), 1e-3),
        (dict(lower_bound=-4.0), 1e-3),
        (dict(situ_beta=3.0), 1e-3),
        (dict(situ_linear_beta=5.0), 1e-4),
        (dict(scaling=2.0), 1e-9),  # the norm after it undoes all but its eps
    ],
)
def test_numbers_that_no_weight_shows_are_felt(num_dense, changes, least):
    config = dataclasses.replace(CONFIG, num_dense=num_dense)
    model, twin = ours(config=config), ours(config=dataclasses.replace(config, **changes))
    twin.load_state_dict(model.state_dict())
    if num_dense and "scaling" in changes:
        least = -1  # there are no routed experts
    with torch.no_grad():
        assert error(twin(some_ids()), model(some_ids())) > least


def test_every_norm_has_the_eps_of_the_configuration_but_for_the_latents():
    model = KimiK3(dataclasses.replace(CONFIG, norm_eps=0.25))
    for name, module in model.named_modules():
        if isinstance(module, RMSNorm):
            assert module.eps == (
                1e-6 if "latent_norm" in name or "query_norm" in name else 0.25
            )


def test_gradients_are_those_of_finite_differences():
    # In float64 with a step of 1e-6 central differences are good to about 1e-9 of the slope;
    # the choice of experts does not change within such a step.
    model, ids = ours(), some_ids(T=7)

    def loss():
        return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    loss().backward()
    g = torch.Generator().manual_seed(3)
    for name, p in model.named_parameters():
        if name.startswith("layers.0.attention_residual."):
            # It has the embedding as its only source, and weights of one source are 1.
            assert p.grad is None or p.grad.abs().max() < 1e-15, name
            continue
        way = torch.randn(p.shape, generator=g, dtype=p.dtype)
        with torch.no_grad():
            p.add_(1e-6 * way)
            high = loss()
            p.sub_(2e-6 * way)
            low = loss()
            p.add_(1e-6 * way)
        slope = ((high - low) / 2e-6).item()
        assert (p.grad * way).sum().item() == pytest.approx(slope, rel=1e-4, abs=1e-8), name
        assert p.grad.abs().max() > 0, name


def test_bfloat16_and_autocast_stay_close_to_float32():
    model, ids = ours(torch.float32), some_ids()
    with torch.no_grad():
        full = model(ids)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cache = model.new_cache(batch=2)
            mixed = torch.cat([model(ids[:, :6], cache), model(ids[:, 6:], cache)], dim=1)
        half = model.bfloat16()(ids)
    # bfloat16 keeps 8 bits, and a rounded state may send a token to other experts: the mean
    # error is bounded, not the largest.
    for got in (mixed, half):
        assert got.isfinite().all()
        assert (got.float() - full).abs().mean() < 0.1 * full.abs().mean()


def test_a_new_model_knows_nothing_and_learns():
    torch.manual_seed(0)
    model = KimiK3(KimiK3Config.tiny())
    assert sum(p.numel() for p in model.parameters()) < 3_000_000
    ids = torch.randint(0, 1024, (4, 32))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert abs(losses[0] - math.log(1024)) < 0.1  # that of a uniform guess
    assert losses[-1] < 0.6 * losses[0]


def test_it_writes_what_it_holds_most_likely():
    model = ours(torch.float32)
    ids = some_ids(1, 5)
    text = generate.generate(model, ids, max_new_tokens=4, temperature=0.0)
    with torch.no_grad():
        assert torch.equal(model(text)[:, 4:-1].argmax(-1), text[:, 5:])


# Sizes, counted and in closed form

PART_OF = {  # the first of these that is in a name says its part
    "token_embedding": "token embedding",
    "residual": "attention residuals",
    "head": "head",
    "router.bias": "selection biases",
    "router.weight": "router",
    "A_log": "KDA rates",
    "dt_bias": "KDA rates",
    "shared": "shared experts",
    "experts": "routed experts",
}


def part_of(name, config):
    for word, part in PART_OF.items():
        if word in name:
            return part
    if name.startswith("final_norm") or name.split(".")[2] in ("attention_norm", "ffn_norm"):
        return "RMSNorm"
    layer = int(name.split(".")[1]) + 1
    if ".attention." in name:
        return "MLA" if layer in config.mla_layers else "KDA"
    return "dense MLP" if layer <= config.num_dense else "latent projections"


def counted(config):
    """Numbers by part, of a real model without memory behind it."""
    with torch.device("meta"):
        model = KimiK3(config)
    parts = dict.fromkeys(accounting.parameter_parts(config), 0)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        assert tensor.is_meta
        parts[part_of(name, config)] += tensor.numel()
    return parts


SMALL = [
    CONFIG,
    dataclasses.replace(CONFIG, mla_layers=(), num_dense=0, shared_key_width=0),
    dataclasses.replace(CONFIG, num_dense=6, num_layers=6, num_shared=0, block_size=1),
]


@pytest.mark.parametrize("config", [KimiK3Config.kimi_k3(), KimiK3Config.tiny(), *SMALL])
def test_parameters_are_those_of_the_model(config):
    assert accounting.parameter_parts(config) == counted(config)


def test_the_published_size():
    config = KimiK3Config.kimi_k3()
    assert accounting.parameters(config) == 2_779_484_476_000
    parts = accounting.parameter_parts(config)
    assert parts["routed experts"] == 2_722_740_830_208
    assert parts["selection biases"] == 82_432
    assert accounting.active_parameters(config) == 104_189_612_640
    assert len(config.mla_layers) == 24 and config.mla_layers[-2:] == (92, 93)


def test_what_kimi_k3_remembers():
    numbers = accounting.cache_numbers(KimiK3Config.kimi_k3(), 1)
    assert numbers["state"] == 108_527_616
    assert numbers["neighbours"] == 69 * 3 * 3 * 12_288
    assert numbers["latents"] + numbers["shared keys"] == 13_824


@pytest.mark.parametrize("config", SMALL)
def test_active_parameters_are_those_of_as_few_experts(config):
    parts = accounting.parameter_parts(config) | {"token embedding": 0}
    few = dataclasses.replace(config, num_experts=config.num_active)
    parts["routed experts"] = accounting.parameter_parts(few)["routed experts"]
    assert accounting.active_parameters(config) == sum(parts.values())


@pytest.mark.parametrize("config", SMALL)
def test_cache_bytes_are_those_of_the_cache(config):
    model = ours(torch.float32, config)
    cache = model.new_cache(batch=3)
    for t in range(4):
        assert accounting.cache_bytes(config, t, bytes_per_number=4, batch=3) == cache.bytes
        with torch.no_grad():
            model(torch.zeros(3, 1, dtype=torch.int64), cache)


@pytest.mark.parametrize("config", [KimiK3Config.tiny(), *SMALL[1:]])
def test_a_step_is_counted_exactly(config):
    model, ids = ours(torch.float32, config), torch.zeros(1, 40, dtype=torch.int64)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :39], cache)
        with FlopCounterMode(display=False) as counter:
            model(ids[:, 39:], cache)
    parts = accounting.decode_flops_parts(config, 40)
    # PyTorch counts products of matrices alone; these are done entry by entry: fading and
    # writing, the scores of attention residuals, and the sum over a single source.
    entries = parts["short convolutions"] + parts["KDA state"] * 3 // 7
    entries += parts["attention residuals"] // 2 + 2 * config.width
    assert counter.get_total_flops() == accounting.decode_flops(config, 40) - entries


# Checkpoints


def edit_tensors(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def edit_config(folder, change):
    """`change` gets config.json, its text_config and its linear_attn_config, to change them."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config, config["text_config"], config["text_config"]["linear_attn_config"])
    path.write_text(json.dumps(config))


def refused(folder):
    with pytest.raises(CheckpointError) as caught:
        KimiK3.from_pretrained(folder)
    return str(caught.value)


def assert_same(a, b):
    theirs = dict(b.state_dict())
    assert a.state_dict().keys() == theirs.keys()
    for name, tensor in a.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.fixture
def model():
    return ours(torch.float32)


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def golden(tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(GOLDEN / name, tmp_path / name)
    return tmp_path


def test_what_is_saved_is_the_golden_layout_with_padded_decay_rates(tmp_path):
    model = KimiK3.from_pretrained(GOLDEN)
    model.save_pretrained(tmp_path)
    published, saved = (load_file(f / "model.safetensors") for f in (GOLDEN, tmp_path))
    assert saved.keys() == published.keys()
    for name, tensor in saved.items():
        if name.endswith("A_log"):
            assert tensor.shape == (128,)
            tensor = tensor[:5]
        assert torch.equal(tensor, published[name]), name
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    expected = json.loads((GOLDEN / "config.json").read_text())["text_config"]
    assert text | expected == text


@pytest.mark.parametrize("max_shard_bytes", [20_000, 10**9])
def test_saving_and_loading_keeps_every_bit(tmp_path, model, max_shard_bytes):
    model.save_pretrained(tmp_path, max_shard_bytes=max_shard_bytes)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 3) == (max_shard_bytes < 10**9)
    twin = KimiK3.from_pretrained(tmp_path)
    assert twin.config == model.config
    assert_same(twin, model)
    with torch.no_grad():  # products round by where their matrices lie in memory
        assert error(twin(some_ids()), model(some_ids())) < 1e-4


def test_what_is_saved_keeps_its_dtype(tmp_path):
    model = ours(torch.float64)
    model.save_pretrained(tmp_path)
    assert_same(KimiK3.from_pretrained(tmp_path), model)


def test_every_number_survives_config_json(tmp_path):
    config = dataclasses.replace(
        CONFIG,
        lower_bound=-3.5,
        situ_beta=3.0,
        situ_linear_beta=20.0,
        scaling=2.5,
        norm_eps=1e-4,
        context_length=999,
    )
    KimiK3(config).save_pretrained(tmp_path)
    assert KimiK3.from_pretrained(tmp_path).config == config


def test_padding_of_decay_rates_has_no_meaning(folder, model):
    def fill(tensors):
        for name in tensors:
            if name.endswith("A_log"):
                tensors[name][3:] = math.nan
        return tensors

    edit_tensors(folder, fill)
    assert_same(KimiK3.from_pretrained(folder), model)


def test_vision_tensors_and_bookkeeping_are_passed_over(golden):
    extra = {"vision_tower.patch_embed.proj.weight": torch.zeros(3, 2)}
    extra["mm_projector.linear_1.bias"] = torch.zeros(4)
    edit_tensors(golden, lambda t: t | extra)

    def change(top, text, linear):
        top.update(architectures=["KimiK3ForConditionalGeneration"], vision_config={"a": 1})
        top.update(tie_word_embeddings=False, dtype="bfloat16", media_placeholder_token_id=7)
        text.update(num_key_value_heads=4, num_expert_group=1, topk_group=1, rope_theta=1e4)
        text.update(use_cache=True, max_position_embeddings=2048, topk_method="noaux_tc")

    edit_config(golden, change)
    model = KimiK3.from_pretrained(golden)
    assert_same(model, KimiK3.from_pretrained(GOLDEN))
    assert model.config.context_length == 2048


def test_what_decides_stays_exact_when_the_rest_is_rounded(folder, model):
    half = KimiK3.from_pretrained(folder, dtype=torch.bfloat16)
    exact = ("A_log", "dt_bias", "router.weight", "router.bias")
    for name, tensor in half.state_dict().items():
        original = model.state_dict()[name]
        if name.endswith(exact):
            assert torch.equal(tensor, original), name
        else:
            assert torch.equal(tensor, original.bfloat16()), name


def test_everything_that_is_wrong_is_listed_at_once(golden):
    layer = "language_model.model.layers.1."

    def change(tensors):
        del tensors[layer + "self_attn.f_a_proj.weight"]
        del tensors[layer + "block_sparse_moe.experts.6.w2.weight"]
        tensors[layer + "block_sparse_moe.experts.8.w1.weight"] = torch.zeros(16, 20)
        tensors["language_model.model.layers.9.input_layernorm.weight"] = torch.zeros(40)
        tensors["lm_head.weight"] = torch.zeros(128, 40)
        tensors[layer + "self_attn.A_log"] = torch.zeros(64)
        tensors[layer + "self_attn.q_conv1d.weight"] = torch.zeros(40, 4)
        return tensors

    edit_tensors(golden, change)
    assert sorted(refused(golden).split("\n  ")[1:]) == sorted(
        [
            f"missing: {layer}self_attn.f_a_proj.weight [8, 40]",
            f"missing: {layer}block_sparse_moe.experts.6.w2.weight [20, 16]",
            f"unexpected: {layer}block_sparse_moe.experts.8.w1.weight [16, 20]",
            "unexpected: language_model.model.layers.9.input_layernorm.weight [40]",
            "unexpected: lm_head.weight [128, 40]",
            f"misshapen: {layer}self_attn.A_log is [64], needs [128]",
            f"misshapen: {layer}self_attn.q_conv1d.weight is [40, 4], needs [40, 1, 4]",
        ]
    )


# MXFP4

HALVES = [0, 1, 2, 3, 4, 6, 8, 12]  # E2M1's values, times 2


def by_definition(packed, scale):
    """One number at a time, in Python's own arithmetic."""
    rows = []
    for codes, exponents in zip(packed.tolist(), scale.tolist(), strict=True):
        nibbles = [n for byte in codes for n in (byte % 16, byte // 16)]
        signs = [-1 if n >= 8 else 1 for n in nibbles]
        powers = [2.0 ** (e - 128) for e in exponents for _ in range(32)]
        triples = zip(signs, nibbles, powers, strict=True)
        rows.append([sign * HALVES[n % 8] * power for sign, n, power in triples])
    return torch.tensor(rows, dtype=torch.float64)


def some_mxfp4(rows, columns, seed=0, low=120, high=130):
    g = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, columns // 2), generator=g).to(torch.uint8)
    return packed, torch.randint(low, high, (rows, columns // 32), generator=g).to(torch.uint8)


@given(seed=st.integers(0, 99), rows=st.integers(1, 4), groups=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_mxfp4_is_its_definition_exactly(dtype, seed, rows, groups):
    packed, scale = some_mxfp4(rows, 32 * groups, seed, low=0, high=252)
    got = mxfp4.dequantise(packed, scale, dtype)
    assert got.dtype == dtype
    assert torch.equal(got.double(), by_definition(packed, scale))


def test_the_low_four_bits_come_first():
    packed = torch.zeros(1, 16, dtype=torch.uint8)
    packed[0, 0] = 0x2F  # 15 is -6, and 2 is 1
    got = mxfp4.dequantise(packed, torch.tensor([[128]], dtype=torch.uint8))
    assert got[0, :3].tolist() == [-12.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "packed, scale, message",
    [
        (torch.zeros(2, 16), torch.zeros(2, 1, dtype=torch.uint8), "packed: got torch.float32"),
        (torch.zeros(2, 16, dtype=torch.uint8), torch.zeros(2, 1), "scale: got torch.float32"),
        (*some_mxfp4(2, 64), "scale: got 255"),
        (some_mxfp4(2, 64)[0], some_mxfp4(2, 32)[1], r"packed: got \[2, 32\]"),
    ],
)
def test_what_is_no_mxfp4_is_refused(packed, scale, message):
    if "255" in message:
        scale[1, 1] = 255
    with pytest.raises(CheckpointError, match=message):
        mxfp4.dequantise(packed, scale)


@pytest.fixture
def quantised(folder):
    """The experts of the checkpoint in MXFP4, and what they are: published name -> matrix."""
    matrices = {}

    def change(tensors):
        for i, name in enumerate([n for n in tensors if ".experts." in n]):
            packed, scale = some_mxfp4(*tensors.pop(name).shape, seed=i)
            tensors[name + "_packed"], tensors[name + "_scale"] = packed, scale
            matrices[name] = by_definition(packed, scale)
        return tensors

    scheme = {"config_groups": {"group_0": {"format": "mxfp4-pack-quantized"}}}
    edit_tensors(folder, change)
    edit_config(folder, lambda top, text, linear: text.update(quantization_config=scheme))
    return folder, matrices


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_experts_in_mxfp4_are_read_exactly(quantised, model, dtype):
    folder, matrices = quantised
    loaded = KimiK3.from_pretrained(folder, dtype=dtype)
    places = {"gate": "w1", "up": "w3", "down": "w2"}
    for i, (ours, w), e in itertools.product(range(2, 6), places.items(), range(5)):
        name = f"language_model.model.layers.{i}.block_sparse_moe.experts.{e}.{w}.weight"
        got = getattr(loaded.layers[i].ffn.experts, ours)[e]
        assert got.dtype == (dtype or torch.float32)
        assert torch.equal(got.double(), matrices[name]), name
    with torch.no_grad():
        assert loaded(some_ids()).isfinite().all()


def test_halves_of_mxfp4_and_second_forms_are_listed(quantised):
    folder, _ = quantised
    experts = "language_model.model.layers.2.block_sparse_moe.experts."

    def change(tensors):
        del tensors[experts + "0.w1.weight_scale"]
        tensors[experts + "1.w2.weight"] = torch.zeros(32, 64)
        tensors[experts + "3.w3.weight_packed"] = torch.zeros(64, 32, dtype=torch.uint8)
        return tensors

    edit_tensors(folder, change)
    assert sorted(refused(folder).split("\n  ")[1:]) == [
        f"misshapen: {experts}3.w3.weight_packed is [64, 32], needs [64, 16]",
        f"missing: {experts}0.w1.weight_scale [64, 1]",
        f"unexpected: {experts}1.w2.weight [32, 64]",
    ]


# What is refused


def put(part, key, value):
    def change(*parts):
        parts[part][key] = value

    return change


TOP, TEXT, LINEAR = range(3)
FP8 = {"config_groups": {"group_0": {"format": "float-quantized"}}}


@pytest.mark.parametrize(
    "change, message",
    [
        (put(TOP, "model_type", "kimi_linear"), 'model_type = "kimi_linear", only "kimi_k3"'),
        (put(TOP, "sliding_window", 5), "unknown, may change the computation: sliding_window"),
        (put(TOP, "text_config", [1]), "text_config is a list, needs an object"),
        (put(TEXT, "rope_scale", 2.0), "unknown, may change the computation: rope_scale"),
        (put(TEXT, "hidden_act", "silu"), 'hidden_act = "silu", only "situ"'),
        (put(TEXT, "mla_use_nope", False), "mla_use_nope = false, only true"),
        (put(TEXT, "num_expert_group", 2), "num_expert_group = 2, only 1"),
        (put(TEXT, "num_key_value_heads", 1), "num_key_value_heads = 1, only 4"),
        (put(TEXT, "tie_word_embeddings", True), "tie_word_embeddings = true, only false"),
        (put(TEXT, "quantization_config", FP8), "formats .*float-quantized.* only mxfp4"),
        (put(TEXT, "quantization_config", "int8"), "formats .* only mxfp4-pack-quantized"),
        (put(TEXT, "linear_attn_config", None), "linear_attn_config is a NoneType"),
        (put(TEXT, "num_experts_per_token", 9), "num_active: got 9, needs at most num_exp"),
        (put(TEXT, "num_hidden_layers", "9"), "num_layers: got '9', needs a whole number"),
        (put(TEXT, "num_hidden_layers", 10), "layer 10 is in neither list: add it to one"),
        (put(TEXT, "num_hidden_layers", 8), "layer 9: take it out, layers go from 1 to 8"),
        (put(TEXT, "kv_lora_rank", 0), "kv_rank: got 0, needs a whole number >= 1"),
        (put(TEXT, "rms_norm_eps", 1), "norm_eps: got 1, needs more than 0, below 1"),
        (put(LINEAR, "kda_layers", [1, 2, 3, 4, 5, 6, 7]), "layer 4 is there 2 times: keep"),
        (put(LINEAR, "kda_layers", [1, 2, 3, 5, 7]), "layer 6 is in neither list"),
        (put(LINEAR, "kda_layers", [1, 2, 3, 5, 6, 7.0]), "kda_layers: got .* whole numbers"),
        (put(LINEAR, "full_attn_layers", None), "full_attn_layers: got None"),
        (put(LINEAR, "use_full_rank_gate", False), "use_full_rank_gate = false, only true"),
        (put(LINEAR, "gate_lower_bound", 5.0), "lower_bound: got 5.0, needs a finite number"),
        (put(LINEAR, "feature_map", "elu"), "unknown, may change the computation: feature_map"),
    ],
)
def test_configurations_of_other_models_are_refused(golden, change, message):
    edit_config(golden, change)
    with pytest.raises(CheckpointError, match=message):
        KimiK3.from_pretrained(golden)


@pytest.mark.parametrize("part", [TOP, TEXT, LINEAR])
def test_every_key_of_the_golden_configuration_must_be_there(golden, part):
    content = json.loads((golden / "config.json").read_text())
    text = content["text_config"]
    keys = [content, text, text["linear_attn_config"]][part].keys() - {
        "num_nextn_predict_layers"  # says only what is not there
    }
    original = (golden / "config.json").read_text()
    for key in keys:
        (golden / "config.json").write_text(original)
        edit_config(golden, lambda *parts, key=key: parts[part].pop(key))
        assert f"missing: {key}" in refused(golden)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(width=0), "width: got 0, needs a whole number >= 1"),
        (dict(vocab_size=61.0), "vocab_size: got 61.0"),
        (dict(num_experts=True), "num_experts: got True"),
        (dict(num_shared=-1), "num_shared: got -1, needs a whole number >= 0"),
        (dict(num_active=6), "num_active: got 6, needs at most num_experts = 5"),
        (dict(num_dense=7), "num_dense: got 7, needs at most num_layers = 6"),
        (dict(mla_layers=[2, 5]), r"mla_layers: got \[2, 5\], needs a tuple"),
        (dict(mla_layers=(5, 2)), "mla_layers: .* in order, from 1 to num_layers = 6"),
        (dict(mla_layers=(2, 2)), "mla_layers: .* different layers"),
        (dict(mla_layers=(0, 4)), r"mla_layers: got \(0, 4\)"),
        (dict(mla_layers=(4, 7)), r"mla_layers: got \(4, 7\)"),
        (dict(mla_layers=(True, 4)), r"mla_layers: got \(True, 4\)"),
        (dict(lower_bound=0.0), "lower_bound: got 0.0, needs a finite number below 0"),
        (dict(lower_bound=-math.inf), "lower_bound: got -inf"),
        (dict(situ_beta=0), "situ_beta: got 0, needs a finite number above 0"),
        (dict(situ_linear_beta=math.nan), "situ_linear_beta: got nan"),
        (dict(scaling="1"), "scaling: got '1'"),
        (dict(norm_eps=0.0), "norm_eps: got 0.0, needs more than 0"),
    ],
)
def test_inconsistent_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_configurations_refuse_unknown_fields_and_changes():
    with pytest.raises(TypeError, match="num_heads"):
        dataclasses.replace(CONFIG, num_heads=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.width = 64


def test_latent_attention_is_every_fourth_layer_and_the_last():
    assert every_fourth_and_last(9) == (4, 8, 9)
    assert every_fourth_and_last(8) == (4, 8)
    assert every_fourth_and_last(1) == (1,)


@pytest.mark.parametrize(
    "ids, message",
    [
        (torch.zeros(1, 0, dtype=torch.int64), "ids: got .*at least one token"),
        (torch.zeros(5, dtype=torch.int64), r"ids: got \[5\], needs \[B, T\]"),
        (torch.zeros(1, 5), "ids: got torch.float32, needs an int64 tensor"),
        ([[1, 2]], "ids: got list, needs an int64 tensor"),
        (torch.tensor([[0, 61, 3]]), "ids: got token 61, needs 0 to 60"),
        (torch.tensor([[0, -1, 3]]), "ids: got token -1, needs 0 to 60"),
    ],
)
def test_bad_ids_are_named_and_the_cache_left_alone(model, ids, message):
    cache = model.new_cache()
    with pytest.raises(ValueError, match=message):
        model(ids, cache)
    assert cache.length == 0


def test_a_cache_of_another_model_is_refused_and_left_alone(model):
    cache = ours(config=dataclasses.replace(CONFIG, block_size=2)).new_cache()
    with pytest.raises(ValueError, match="cache: got one for"):
        model(some_ids(1), cache)
    with pytest.raises(ValueError, match="cache: got one for None"):
        model(some_ids(1), [None] * 6)
    assert cache.length == 0
