"""Kimi Linear against `transformers` on random tiny models, its layouts, and its laws."""

import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from llmcourse import accounting
from llmcourse.models import CheckpointError, KimiLinear, KimiLinearConfig

# Two dense layers, two of MLA, groups of experts: nothing at its default, no two sizes alike.
CONFIG = KimiLinearConfig(
    vocab_size=61,
    width=28,
    num_layers=5,
    mla_layers=(3, 5),
    kda_heads=3,
    kda_head_width=8,
    mla_heads=2,
    kv_rank=16,
    key_width=7,
    shared_key_width=4,
    value_width=10,
    dense_width=48,
    num_experts=6,
    num_active=2,
    expert_width=12,
    num_shared=2,
    num_dense=2,
    conv_size=3,
    num_groups=3,
    active_groups=2,
    scaling=1.7,
    norm_eps=0.1,  # so large that one in the wrong place shows
)
# max|a - b| / max|b|. The reference computes in float32 (norms, router and memory always do),
# and its weights, shaken, amplify rounding: logits and states are within 3e-6, gradients
# within 1e-5.
TOLERANCE = 3e-5


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def some_ids(B=2, T=13, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, CONFIG.vocab_size, (B, T), generator=g)


def next_token_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def shaken(model, seed=1):
    """No parameter and no selection bias at its start: biases of 0 would hide mistakes."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g, dtype=p.dtype))
        for name, b in model.named_buffers():
            if name.endswith("bias"):
                b.add_(0.3 * torch.randn(b.shape, generator=g, dtype=b.dtype))
    return model


def ours(dtype=torch.float64, config=CONFIG):
    torch.manual_seed(0)
    return shaken(KimiLinear(config).to(dtype))


def reference(**options):
    config = transformers.KimiLinearConfig(
        **dict(vocab_size=61, hidden_size=28, intermediate_size=48, moe_intermediate_size=12),
        **dict(num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=2),
        **dict(layer_types=[*LINEAR * 2, *FULL, *LINEAR, *FULL]),
        **dict(mlp_layer_types=["dense"] * 2 + ["sparse"] * 3),
        **dict(linear_head_dim=8, linear_num_heads=3, linear_conv_kernel_dim=3),
        **dict(kv_lora_rank=16, qk_nope_head_dim=7, qk_rope_head_dim=4, v_head_dim=10),
        **dict(num_local_experts=6, num_experts_per_tok=2, n_shared_experts=2),
        **dict(n_group=3, topk_group=2, routed_scaling_factor=1.7, rms_norm_eps=0.1),
        **dict(pad_token_id=None, bos_token_id=None, eos_token_id=None),
        **options,
    )
    torch.manual_seed(0)
    return shaken(transformers.KimiLinearForCausalLM(config)).eval()


LINEAR, FULL = ["linear_attention"], ["full_attention"]


@pytest.fixture
def folder(tmp_path):
    ours(torch.float32).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def pair(request, tmp_path):
    """The reference and our model, loaded from the folder that the reference saved."""
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    return KimiLinear.from_pretrained(tmp_path, dtype=request.param), theirs


# Against transformers


def test_logits_and_hidden_states_equal_transformers(pair):
    model, theirs = pair
    assert model.config == CONFIG
    ids, hidden = some_ids(T=70), []  # more than one of their chunks of 64
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, output: hidden.append(output))
    model.final_norm.register_forward_hook(lambda m, args, output: hidden.append(output))
    expected = theirs(ids, output_hidden_states=True)
    logits = model(ids)
    assert logits.dtype == model.head.weight.dtype
    assert error(logits, expected.logits) < TOLERANCE
    states = [model.token_embedding(ids), *hidden[: CONFIG.num_layers - 1], hidden[-1]]
    for got, state in zip(states, expected.hidden_states, strict=True):  # last: normalised
        assert error(got, state) < TOLERANCE


def test_loss_and_every_gradient_equal_transformers(pair, tmp_path):
    model, theirs = pair
    ids = some_ids(T=17)
    expected = next_token_loss(theirs(ids).logits, ids)
    loss = next_token_loss(model(ids), ids)
    assert abs(loss.item() / expected.item() - 1) < TOLERANCE
    loss.backward()
    expected.backward()
    # As checkpoints, the gradients meet under the published names.
    for module in (model, theirs):
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(p.grad)
    model.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    got, grads = (load_file(tmp_path / x / "model.safetensors") for x in ("ours", "theirs"))
    grads = {n.replace("block_sparse_moe.", "mlp."): g for n, g in grads.items()}
    got = {n.replace("block_sparse_moe.", "mlp."): g for n, g in got.items()}
    assert got.keys() == grads.keys()
    for name, grad in grads.items():
        if grad.any():  # an expert that no token chose has none
            assert error(got[name], grad) < TOLERANCE, name
        else:
            assert not got[name].any(), name


@pytest.mark.parametrize("original", [True, False], ids=["per expert", "stacked"])
def test_both_layouts_of_transformers_are_read(tmp_path, original):
    theirs = reference()
    theirs.save_pretrained(tmp_path, save_original_format=original)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert any(name.endswith("experts.gate_up_proj") for name in names) != original
    model = KimiLinear.from_pretrained(tmp_path)
    assert error(model(some_ids()), theirs(some_ids()).logits) < TOLERANCE


def test_weights_that_are_not_renormalised_equal_transformers(tmp_path):
    theirs = reference(norm_topk_prob=False)
    theirs.save_pretrained(tmp_path)
    model = KimiLinear.from_pretrained(tmp_path)
    assert model.config == dataclasses.replace(CONFIG, renormalise=False)
    assert error(model(some_ids()), theirs(some_ids()).logits) < TOLERANCE


@pytest.mark.parametrize("shards", [1, 4])
def test_transformers_load_what_we_save(tmp_path, shards):
    model = ours(torch.float32)
    size = sum(p.nbytes for p in model.state_dict().values())
    model.save_pretrained(tmp_path, max_shard_bytes=-(-size // shards))
    theirs, report = transformers.KimiLinearForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values())
    assert error(theirs(some_ids()).logits, model(some_ids())) < TOLERANCE


def first_blocks(model, number):
    x = model.token_embedding(some_ids())
    for block in model.blocks[:number]:
        x = block(x)
    return x


def test_weights_in_bfloat16_keep_in_float32_what_chooses_and_what_fades(tmp_path):
    theirs = reference(experts_implementation="eager").to(torch.bfloat16)  # any width
    for name, p in theirs.named_parameters():
        if name.endswith(("gate.weight", "dt_bias", "A_log")):
            p.data = p.data.float()
    theirs.save_pretrained(tmp_path)
    model = KimiLinear.from_pretrained(tmp_path)
    exact = [n for n, x in model.state_dict().items() if x.dtype == torch.float32]
    assert {n.split(".", 3)[-1] for n in exact} == {
        "decay.A_log",
        "decay.dt_bias",
        "router.weight",
        "router.bias",
    }
    assert len(exact) == 2 * 3 + 2 * 3  # three layers of KDA, three with experts
    twin = KimiLinear.from_pretrained(tmp_path, dtype=torch.float32)
    assert {x.dtype for x in twin.state_dict().values()} == {torch.float32}
    assert model(some_ids()).dtype == torch.bfloat16
    # Beyond the dense layers a token may, by a rounding, wake another expert. Before them 8
    # bits leave the states 1 to 2% off, as they leave the reference's.
    rounded, exact = (first_blocks(m, 2).float() for m in (model, twin))
    assert (rounded - exact).square().mean().sqrt() < 0.04 * exact.std()


# The published layout


def test_the_layout_is_the_published_one(folder):
    shapes = {n: list(x.shape) for n, x in load_file(folder / "model.safetensors").items()}
    for name, shape in {
        "model.embed_tokens.weight": [61, 28],
        "lm_head.weight": [61, 28],
        "model.norm.weight": [28],
        "model.layers.0.input_layernorm.weight": [28],
        "model.layers.0.post_attention_layernorm.weight": [28],
        "model.layers.0.self_attn.A_log": [1, 1, 3, 1],
        "model.layers.0.self_attn.dt_bias": [24],
        "model.layers.0.self_attn.q_conv1d.weight": [24, 1, 3],
        "model.layers.0.self_attn.q_proj.weight": [24, 28],
        "model.layers.0.self_attn.f_a_proj.weight": [8, 28],
        "model.layers.0.self_attn.g_b_proj.weight": [24, 8],
        "model.layers.0.self_attn.b_proj.weight": [3, 28],
        "model.layers.0.self_attn.o_norm.weight": [8],
        "model.layers.0.mlp.gate_proj.weight": [48, 28],
        "model.layers.2.self_attn.q_proj.weight": [22, 28],
        "model.layers.2.self_attn.kv_a_proj_with_mqa.weight": [20, 28],
        "model.layers.2.self_attn.kv_a_layernorm.weight": [16],
        "model.layers.2.self_attn.kv_b_proj.weight": [34, 16],
        "model.layers.2.block_sparse_moe.gate.weight": [6, 28],
        "model.layers.2.block_sparse_moe.gate.e_score_correction_bias": [6],
        "model.layers.2.block_sparse_moe.experts.5.w1.weight": [12, 28],
        "model.layers.2.block_sparse_moe.experts.5.w2.weight": [28, 12],
        "model.layers.2.block_sparse_moe.shared_experts.up_proj.weight": [24, 28],
    }.items():
        assert shapes.get(name) == shape, name
    in_a_moe_layer_with_mla = 2 + 5 + 2 + 3 * 6 + 3
    assert sum(name.startswith("model.layers.2.") for name in shapes) == in_a_moe_layer_with_mla


def test_saving_and_loading_keeps_every_bit(folder):
    model, twin = ours(torch.float32), KimiLinear.from_pretrained(folder)
    assert twin.config == model.config
    a, b = model.state_dict(), twin.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert torch.equal(twin(some_ids()), model(some_ids()))
    assert dict(twin.named_parameters()).keys() == dict(model.named_parameters()).keys()


def refused(folder):
    with pytest.raises(CheckpointError) as caught:
        KimiLinear.from_pretrained(folder)
    return str(caught.value)


def test_everything_missing_unexpected_and_misshapen_is_listed(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.3.block_sparse_moe.experts.4.w3.weight"]
    del tensors["model.layers.2.block_sparse_moe.gate.e_score_correction_bias"]
    tensors["model.layers.9.input_layernorm.weight"] = torch.ones(28)
    tensors["model.layers.2.block_sparse_moe.experts.6.w1.weight"] = torch.ones(12, 28)
    tensors["model.layers.0.self_attn.A_log"] = torch.ones(3)
    tensors["model.layers.0.self_attn.conv1d.weight"] = torch.ones(())
    save_file(tensors, path)
    assert set(refused(folder).splitlines()[1:]) == {
        "  missing: model.layers.2.block_sparse_moe.gate.e_score_correction_bias [6]",
        "  missing: model.layers.3.block_sparse_moe.experts.4.w3.weight [12, 28]",
        "  misshapen: model.layers.0.self_attn.A_log is [3], needs [1, 1, 3, 1]",
        "  unexpected: model.layers.0.self_attn.conv1d.weight []",
        "  unexpected: model.layers.2.block_sparse_moe.experts.6.w1.weight [12, 28]",
        "  unexpected: model.layers.9.input_layernorm.weight [28]",
    }


def test_stacked_experts_of_other_sizes_are_refused(tmp_path):
    reference().save_pretrained(tmp_path, save_original_format=False)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.2.mlp.experts.gate_up_proj"
    save_file(tensors | {name: tensors[name][:5]}, path)
    message = refused(tmp_path)
    assert "missing: model.layers.2.block_sparse_moe.experts.5.w1.weight [12, 28]" in message
    assert "missing: model.layers.2.block_sparse_moe.experts.5.w3.weight [12, 28]" in message
    save_file(tensors | {name: tensors[name][:, :-1].contiguous()}, path)
    assert "experts.0.w1.weight is [11, 28], needs [12, 28]" in refused(tmp_path)


def test_one_weight_in_two_layouts_is_refused(folder):
    path = folder / "model.safetensors"
    extra = {"model.layers.0.self_attn.conv1d.weight": torch.ones(72, 1, 3)}
    save_file(load_file(path) | extra, path)
    message = refused(folder)
    assert message.count("twice: ") == 3
    assert "twice: model.layers.0.self_attn.k_conv1d.weight" in message


# Both dialects of config.json


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


def edit_config(folder, remove=(), **changes):
    config = {k: v for k, v in read_config(folder).items() if k not in remove}
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_we_write_the_original_dialect_and_transformers_keeps_both(folder, tmp_path):
    original = read_config(folder)
    assert original["first_k_dense_replace"] == 2 and "layer_types" not in original
    assert original["linear_attn_config"] == {
        "kda_layers": [1, 2, 4],
        "full_attn_layers": [3, 5],
        "num_heads": 3,
        "head_dim": 8,
        "short_conv_kernel_size": 3,
    }
    theirs = transformers.KimiLinearForCausalLM.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "again")
    again = read_config(tmp_path / "again")
    assert again.keys() >= {"layer_types", "linear_attn_config"}
    twin = KimiLinear.from_pretrained(tmp_path / "again")
    assert torch.equal(twin(some_ids()), ours(torch.float32)(some_ids()))
    edit_config(tmp_path / "again", linear_num_heads=4)
    message = refused(tmp_path / "again")
    assert "linear_num_heads: linear_attn_config" in message and "remove one" in message


def test_lists_of_layers_that_overlap_or_leave_gaps_are_refused(folder):
    linear = read_config(folder)["linear_attn_config"]
    lists = {"kda_layers": [1, 2, 3, 7], "full_attn_layers": [3, 5]}
    edit_config(folder, linear_attn_config=linear | lists)
    where = "kda_layers and full_attn_layers"
    assert refused(folder).splitlines()[1:] == [
        f"  layer 3 is 2 times in {where}: keep one",
        f"  layer 4 is in neither of {where}: add it to one",
        f"  layer 7 is in {where}: remove it, they are 1 to 5",
    ]
    edit_config(folder, linear_attn_config=linear | {"kda_layers": "1, 2"})
    assert "kda_layers: needs a list of whole numbers" in refused(folder)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"linear_attn_config": 3}, "linear_attn_config: needs an object"),
        ({"linear_attn_config": {"num_heads": 3}}, "missing: linear_attn_config.kda_layers"),
        ({"mla_use_nope": False}, "mla_use_nope: needs true"),
        ({"first_k_dense_replace": "2"}, "first_k_dense_replace: needs a whole number"),
        ({"hidden_act": "situ"}, 'hidden_act = "situ", only "silu"'),
        ({"q_lora_rank": 24}, "q_lora_rank = 24, only null"),
        ({"num_key_value_heads": 1}, "num_key_value_heads = 1, only 2"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"attn_res_block_size": 2}, "unknown, may change the computation: attn_res_block"),
        ({"num_experts_per_token": 5}, "num_active: got 5, needs at most the 4 experts"),
        ({"v_head_dim": 0}, "value_width: got 0"),
        ({"vocab_size": "61"}, "vocab_size: got '61'"),
    ],
)
def test_other_models_are_refused(folder, change, words):
    edit_config(folder, **change)
    assert words in refused(folder)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"layer_types": LINEAR * 4}, "layer_types: needs a list of num_hidden_layers = 5"),
        ({"layer_types": ["kda"] * 5}, "layer_types: every kind must be one of"),
        ({"mlp_layer_types": ["sparse"] * 4 + ["dense"]}, "the dense layers must be the first"),
        ({"mlp_layer_types": [["dense"]] * 5}, "mlp_layer_types: every kind must be one of"),
        ({"linear_conv_kernel_dim": 0}, "conv_size: got 0"),
    ],
)
def test_other_models_of_transformers_are_refused(tmp_path, change, words):
    reference().save_pretrained(tmp_path)
    edit_config(tmp_path, **change)
    assert words in refused(tmp_path)
    edit_config(tmp_path, remove=change)
    assert f"missing: {next(iter(change))}" in refused(tmp_path)


# Its laws


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 1, 6], [1, 11], [11, 1], [4, 4, 4]])
def test_reading_in_pieces_equals_reading_at_once(sizes):
    model, ids = ours(), some_ids(T=12)
    cache, pieces, start = model.new_cache(batch=2), [], 0
    with torch.no_grad():
        for size in sizes:
            pieces.append(model(ids[:, start : start + size], cache))
            start += size
            assert cache.length == start
        assert error(torch.cat(pieces, dim=1), model(ids)) < 1e-10


def test_sequences_of_a_batch_do_not_meet_and_can_be_reordered_and_copied():
    model, ids = ours(), some_ids(B=3, T=9)
    with torch.no_grad():
        whole = model(ids)
        assert error(torch.cat([model(row[None]) for row in ids]), whole) < 1e-10
        cache = model.new_cache(batch=3)
        model(ids[:, :6], cache)
        twin = cache.copy()
        order = torch.tensor([2, 0, 0])
        cache.reorder(order)
        assert error(model(ids[order, 6:], cache), whole[order, 6:]) < 1e-10
        assert error(model(ids[:, 6:], twin), whole[:, 6:]) < 1e-10


def test_no_token_sees_a_later_one_and_every_token_sees_all_before():
    model, ids = ours(), some_ids(B=1, T=8)
    changed = ids.clone()
    changed[0, 3] = (ids[0, 3] + 1) % CONFIG.vocab_size
    with torch.no_grad():
        a, b = model(ids), model(changed)
    moved = (a - b).abs().amax(dim=-1)[0]
    assert (moved[:3] < 1e-12).all() and (moved[3:] > 1e-6).all()


def test_a_fresh_model_is_indifferent_and_learns():
    torch.manual_seed(0)
    model, ids = KimiLinear(KimiLinearConfig.tiny()), some_ids(B=2, T=16)
    with torch.no_grad():
        first = next_token_loss(model(ids), ids).item()
    assert abs(first - torch.log(torch.tensor(1024.0)).item()) < 0.1
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(30):
        optimiser.zero_grad()
        loss = next_token_loss(model(ids), ids)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.2 * first  # 0.1 measured


def test_bad_ids_and_foreign_caches_are_refused():
    model = ours(torch.float32)
    cache = model.new_cache()
    for ids, words in {
        (0.5,): "an int64 tensor",
        (61,): "token 61, needs 0 to 60",
        (-1,): "token -1",
        (): "at least one token",
    }.items():
        kind = torch.float32 if ids == (0.5,) else torch.int64
        with pytest.raises(ValueError, match=words):
            model(torch.tensor([ids], dtype=kind), cache)
    other = KimiLinear(dataclasses.replace(CONFIG, scaling=1.0)).new_cache()
    with pytest.raises(ValueError, match="cache: got one for"):
        model(some_ids(B=1), other)
    assert cache.length == 0


@pytest.mark.parametrize(
    "change, words",
    [
        ({"mla_layers": (5, 3)}, "rising"),
        ({"mla_layers": (3, 3)}, "rising"),
        ({"mla_layers": (3, 6)}, "from 1 to num_layers = 5"),
        ({"mla_layers": (0, 3)}, "from 1 to num_layers = 5"),
        ({"mla_layers": [3, 5]}, "a tuple of whole numbers"),
        ({"num_dense": 6}, "num_dense: got 6, needs at most num_layers = 5"),
        ({"num_active": 5}, "num_active: got 5, needs at most the 4 experts"),
        ({"num_groups": 4}, "num_groups: got 4, needs a divisor of num_experts = 6"),
        ({"active_groups": 4}, "active_groups: got 4, needs at most num_groups = 3"),
        ({"value_width": 0}, "value_width: got 0"),
        ({"kda_head_width": 8.0}, "kda_head_width: got 8.0"),
        ({"renormalise": 1}, "renormalise: got 1, needs True or False"),
        ({"scaling": 0.0}, "scaling: got 0.0"),
        ({"norm_eps": 1.0}, "norm_eps: got 1.0"),
    ],
)
def test_configurations_that_cannot_be_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(CONFIG, **change)


def test_no_mla_no_dense_no_shared_experts_and_no_kda_are_fine():
    for change in (
        {"mla_layers": (), "num_dense": 0},
        {"mla_layers": (1, 2, 3, 4, 5), "num_shared": 0},
        {"num_dense": 5, "shared_key_width": 0, "conv_size": 1},
    ):
        model = ours(config=dataclasses.replace(CONFIG, **change))
        ids, cache = some_ids(T=7), model.new_cache(batch=2)
        with torch.no_grad():
            pieces = torch.cat([model(ids[:, :4], cache), model(ids[:, 4:], cache)], dim=1)
            assert error(pieces, model(ids)) < 1e-10


# Its costs

PART_OF = {
    "token_embedding": "token embedding",
    "head": "head",
    "shared.": "shared experts",
    "experts.": "routed experts",
    "router.": "router",
    "mlp.": "dense MLP",
    "A_log": "KDA rates",
    "dt_bias": "KDA rates",
    "query": "MLA",
    "latent": "MLA",
    "mixer.": "KDA",
    "norm": "RMSNorm",
}


def counted(config):
    """Parameters by part, of a real model without memory behind it."""
    with torch.device("meta"):
        model = KimiLinear(config)
    parts = dict.fromkeys(PART_OF.values(), 0)
    for name, parameter in model.named_parameters():
        part = next(p for word, p in PART_OF.items() if word in name)
        if name.startswith("blocks.") and ".mixer.out" in name:
            part = "MLA" if int(name.split(".")[1]) + 1 in config.mla_layers else "KDA"
        parts[part] += parameter.numel()
    return model, parts


@pytest.mark.parametrize(
    "config", [CONFIG, KimiLinearConfig.tiny(), KimiLinearConfig.kimi_linear_48b()]
)
def test_parameters_are_those_of_the_model(config):
    assert accounting.parameter_parts(config) == counted(config)[1]


def test_the_published_sizes():
    config = KimiLinearConfig.kimi_linear_48b()
    model, _ = counted(config)
    assert sum(p.numel() for p in model.parameters()) == 49_122_675_072
    assert sum(b.numel() for b in model.buffers()) == 6_656
    assert accounting.parameters(config) == 49_122_675_072
    assert accounting.active_parameters(config) == 3_106_965_888
    with pytest.raises(ValueError, match="no weights"):
        model.save_pretrained("nowhere")


def test_active_parameters_are_those_that_a_token_moves():
    model = KimiLinear(CONFIG)
    model(torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
    active = 0
    for name, p in model.named_parameters():
        if ".experts." in name:
            woken = p.grad.flatten(1).ne(0).any(dim=1).sum().item()
            active += woken * p[0].numel()
        elif not name.startswith("token_embedding"):
            active += p.numel()
    assert accounting.active_parameters(CONFIG) == active


def test_cache_bytes_are_those_of_the_cache():
    model = KimiLinear(CONFIG)
    cache = model.new_cache(batch=3)
    for t in range(5):
        assert accounting.cache_bytes(CONFIG, t, bytes_per_number=4, batch=3) == cache.bytes
        with torch.no_grad():
            model(torch.zeros(3, 1, dtype=torch.int64), cache)


def test_a_step_after_many_tokens_is_counted_exactly():
    config = dataclasses.replace(CONFIG, kv_rank=4)  # so short that absorbing is cheaper
    model, ids = KimiLinear(config), some_ids(B=1, T=40)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids[:, :39], cache)
        assert model.blocks[2].mixer.absorbed_is_cheaper(1, 40)
        with FlopCounterMode(display=False) as counter:
            model(ids[:, 39:], cache)
    parts = accounting.decode_flops_parts(config, 40)
    # PyTorch counts matrix products alone; these are done entry by entry.
    page = 3 * config.kda_heads * config.kda_head_width**2  # of three layers
    entries = parts["short convolutions"] + page + 2 * page  # fade and write
    assert counter.get_total_flops() == accounting.decode_flops(config, 40) - entries


def test_prefill_is_the_sum_of_decoding_but_that_its_heads_read_what_is_rebuilt():
    steps = [accounting.decode_flops_parts(CONFIG, t) for t in range(1, 31)]
    parts = accounting.prefill_flops_parts(CONFIG, 30)
    summed = {part: sum(step[part] for step in steps) for part in parts}
    less = {part for part in parts if parts[part] < summed[part]}
    assert less == {"MLA scores", "MLA sums"}
    assert all(parts[part] == summed[part] for part in parts.keys() - less)


def test_a_whole_scaling_is_saved_as_transformers_reads_it(tmp_path):
    model = shaken(KimiLinear(dataclasses.replace(CONFIG, scaling=1)))
    model.save_pretrained(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = some_ids()
    with torch.no_grad():
        assert error(theirs(ids).logits, model(ids)) < TOLERANCE
