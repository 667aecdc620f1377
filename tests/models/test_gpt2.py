"""GPT-2 against `transformers` on random tiny models, and its laws."""

import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from llmcourse.models import GPT2, GPT2Config, OneMemory, OneMemoryConfig

CONFIG = GPT2Config(vocab_size=61, context_length=24, width=32, num_layers=3, num_heads=4)
# Errors are max|a - b| / max|b|. Three layers add a few hundred roundings; gradients sum over
# all tokens on top of that.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def some_ids(B=2, T=13, seed=0, vocab_size=61):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (B, T), generator=g)


def next_token_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def shaken(model, seed=1):
    """No parameter left at its start: biases of 0 and norms of 1 would hide mistakes."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return model


def ours(dtype=torch.float64, config=CONFIG):
    torch.manual_seed(0)
    return shaken(GPT2(config).to(dtype))


def reference(dtype=torch.float32, **options):
    config = transformers.GPT2Config(
        **dict(vocab_size=61, n_positions=24, n_embd=32, n_layer=3, n_head=4),
        **dict(bos_token_id=0, eos_token_id=0, attn_implementation="eager"),
        **options,
    )
    torch.manual_seed(0)
    return shaken(transformers.GPT2LMHeadModel(config).to(dtype)).eval()


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def pair(request, tmp_path):
    """The reference and our model, loaded from the folder that the reference saved."""
    theirs = reference(request.param)
    theirs.save_pretrained(tmp_path)
    return GPT2.from_pretrained(tmp_path), theirs, request.param


def test_logits_hidden_states_and_attention_equal_transformers(pair):
    model, theirs, dtype = pair
    ids = some_ids()
    hidden = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, output: hidden.append(output))
    model.final_norm.register_forward_hook(lambda m, args, output: hidden.append(output))
    expected = theirs(ids, output_hidden_states=True, output_attentions=True)
    logits = model(ids)
    assert logits.dtype == dtype
    assert error(logits, expected.logits) < TOLERANCE[dtype]
    states = [*hidden[: CONFIG.num_layers - 1], hidden[-1]]  # theirs hide the last sum
    assert len(expected.hidden_states) == len(states) + 1
    assert error(model.embed(ids), expected.hidden_states[0]) < TOLERANCE[dtype]
    for got, state in zip(states, expected.hidden_states[1:], strict=True):
        assert error(got, state) < TOLERANCE[dtype]
    for got, weights in zip(model.attention_maps(ids), expected.attentions, strict=True):
        assert error(got, weights) < TOLERANCE[dtype]


def test_loss_and_every_gradient_equal_transformers(pair, tmp_path):
    model, theirs, dtype = pair
    ids = some_ids(T=17)
    expected = next_token_loss(theirs(ids).logits, ids)  # theirs would round to float32
    loss = next_token_loss(model(ids), ids)
    assert abs(loss.item() / expected.item() - 1) < TOLERANCE[dtype]
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
    grads = {name.removeprefix("transformer."): grad for name, grad in grads.items()}
    assert got.keys() == grads.keys() and len(got) == 4 + 12 * CONFIG.num_layers
    for name, grad in grads.items():
        assert grad.abs().max() > 0, name
        assert error(got[name], grad) < TOLERANCE[dtype], name


@pytest.mark.parametrize("shards", [1, 5])
def test_transformers_load_what_we_save(tmp_path, shards):
    model = ours(torch.float32)
    size = sum(p.nbytes for p in model.parameters())
    model.save_pretrained(tmp_path, max_shard_bytes=math.ceil(size / shards))
    theirs, report = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert (theirs.config.n_inner, theirs.config.activation_function) == (None, "gelu_new")
    ids = some_ids()
    assert error(theirs(ids).logits, model(ids)) < 1e-5


def test_saving_and_loading_keeps_every_bit(tmp_path):
    model = ours(torch.float32)
    model.save_pretrained(tmp_path)
    twin = GPT2.from_pretrained(tmp_path)
    assert twin.config == model.config
    for (name, a), (other, b) in zip(
        model.named_parameters(), twin.named_parameters(), strict=True
    ):
        assert name == other and torch.equal(a, b), name
    assert torch.equal(twin(some_ids()), model(some_ids()))


def test_logits_equal_transformers_with_a_cache(pair):
    model, theirs, dtype = pair
    ids = some_ids(T=12)
    cache = model.new_cache(batch=2)
    with torch.no_grad():
        pieces = [model(ids[:, a:b], cache) for a, b in [(0, 5), (5, 6), (6, 12)]]
        assert error(torch.cat(pieces, dim=1), theirs(ids).logits) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "preset, count",
    [
        ("gpt2", 124_439_808),
        ("gpt2_medium", 354_823_168),
        ("gpt2_large", 774_030_080),
        ("gpt2_xl", 1_557_611_200),
    ],
)
def test_the_sizes_of_2019_are_exact_and_those_of_transformers(preset, count):
    config = getattr(GPT2Config, preset)()
    with torch.device("meta"):
        model = GPT2(config)
        theirs = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_embd=config.width, n_layer=config.num_layers, n_head=config.num_heads
            )
        )
    assert sum(p.numel() for p in model.parameters()) == count
    assert sum(p.numel() for p in theirs.parameters()) == count
    assert all(p.is_meta for p in model.parameters())


def test_gpt3_is_the_same_code_at_175_billion():
    with torch.device("meta"):
        model = GPT2(GPT2Config.gpt3())
    L, D, V, T = 96, 12288, 50257, 2048
    count = sum(p.numel() for p in model.parameters())
    assert count == V * D + T * D + L * (12 * D * D + 13 * D) + 2 * D
    assert round(count / 1e9) == 175


def test_tiny_is_under_a_million_weights_and_runs():
    model = GPT2(GPT2Config.tiny())
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    assert model(some_ids(vocab_size=1024)).shape == (2, 13, 1024)


def test_shapes_alone_run_on_the_meta_device():
    with torch.device("meta"):
        model = GPT2(GPT2Config.gpt2())
        logits = model(torch.zeros(1, 1024, dtype=torch.int64), model.new_cache())
    assert logits.shape == (1, 1024, 50257)


def test_initialisation_is_that_of_gpt2():
    torch.manual_seed(0)
    model = GPT2(GPT2Config(512, 256, 256, num_layers=8, num_heads=8))
    expected = {
        "token_embedding.weight": 0.02,
        "position_embedding.weight": 0.01,
        "blocks.3.attention.qkv.weight": 0.02,
        "blocks.3.attention.out.weight": 0.02 / 4,  # 16 sums, two a layer
        "blocks.3.mlp.up.weight": 0.02,
        "blocks.3.mlp.down.weight": 0.02 / 4,
    }
    parameters = dict(model.named_parameters())
    for name, std in expected.items():
        # The standard deviation of n numbers is known to 1 / sqrt(2 n) < 0.3%: 5 of those.
        assert abs(parameters[name].std().item() / std - 1) < 0.015, name
        assert abs(parameters[name].mean().item()) < 0.02 * std, name
    for name, p in parameters.items():
        if name.endswith("bias"):
            assert torch.equal(p, torch.zeros_like(p)), name
        elif "norm" in name:
            assert torch.equal(p, torch.ones_like(p)), name


def test_a_new_model_knows_nothing_its_loss_is_that_of_a_uniform_guess():
    torch.manual_seed(0)
    model, ids = GPT2(GPT2Config.tiny()), some_ids(4, 100, vocab_size=1024)
    loss = next_token_loss(model(ids), ids)
    assert abs(loss.item() - math.log(1024)) < 0.1


def test_one_seed_makes_one_model():
    def made(seed):
        torch.manual_seed(seed)
        return GPT2(CONFIG).blocks[2].mlp.up.weight

    assert torch.equal(made(3), made(3))
    assert not torch.equal(made(3), made(4))


def test_the_head_is_tied_to_the_embedding():
    model = ours()
    names = [name for name, _ in model.named_parameters()]
    assert not any("head" in name for name in names)
    with torch.no_grad():
        model.token_embedding.weight[7] = 0
    assert torch.equal(model(some_ids())[..., 7], torch.zeros(2, 13, dtype=torch.float64))


@given(T=st.integers(2, 24), t=st.integers(1, 23))
@settings(max_examples=15, deadline=None)
def test_causality_the_logits_of_a_prefix_do_not_feel_what_follows(T, t):
    model, ids = ours(), some_ids(1, T)
    t = min(t, T - 1)
    assert error(model(ids[:, :t]), model(ids)[:, :t]) < 1e-12


@given(cuts=st.sets(st.integers(1, 23)), T=st.integers(1, 24))
@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_any_pieces_with_a_cache_give_the_logits_of_one_full_pass(dtype, tolerance, cuts, T):
    model, ids = ours(dtype), some_ids(2, T)
    edges = [0, *sorted(cut for cut in cuts if cut < T), T]
    cache = model.new_cache(batch=2)
    with torch.no_grad():
        full = model(ids)
        pieces = [model(ids[:, a:b], cache) for a, b in itertools.pairwise(edges)]
    assert cache.length == T
    assert error(torch.cat(pieces, dim=1), full) < tolerance


def test_the_cache_holds_two_vectors_a_token_a_layer():
    model = ours(torch.float32)
    cache = model.new_cache(batch=2)
    with torch.no_grad():
        model(some_ids(T=13), cache)
    assert cache.bytes == 13 * 2 * CONFIG.num_layers * 2 * CONFIG.width * 4


def test_sequences_of_a_batch_do_not_feel_each_other():
    model, ids = ours(), some_ids(3, 9)
    for row in range(3):
        assert error(model(ids)[row : row + 1], model(ids[row : row + 1])) < 1e-12


def test_bfloat16_and_autocast_stay_close_to_float32():
    model, ids = ours(torch.float32), some_ids()
    full = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        cache = model.new_cache(batch=2)
        mixed = torch.cat([model(ids[:, :6], cache), model(ids[:, 6:], cache)], dim=1)
    # bfloat16 keeps 8 bits (2^-9 = 0.2% a rounding), and errors add up over three layers.
    assert error(mixed.float(), full) < 0.05
    assert error(model.bfloat16()(ids).float(), full) < 0.05


@pytest.mark.parametrize(
    "ids, message",
    [
        (torch.zeros(1, 25, dtype=torch.int64), "ids: got 25 positions.*context of 24"),
        (torch.zeros(1, 0, dtype=torch.int64), "ids: got .*at least one token"),
        (torch.zeros(5, dtype=torch.int64), r"ids: got \[5\], needs \[B, T\]"),
        (torch.zeros(1, 5), "ids: got torch.float32, needs an int64 tensor"),
        ([[1, 2]], "ids: got list, needs an int64 tensor"),
        (torch.tensor([[0, 61, 3]]), "ids: got token 61, needs 0 to 60"),
        (torch.tensor([[0, -1, 3]]), "ids: got token -1, needs 0 to 60"),
    ],
)
def test_bad_ids_are_named(ids, message):
    with pytest.raises(ValueError, match=message):
        ours()(ids)


def test_a_cache_that_would_pass_the_context_is_refused():
    model = ours()
    cache = model.new_cache()
    with torch.no_grad():
        model(some_ids(1, 20), cache)
        with pytest.raises(ValueError, match="ids: got 25 positions"):
            model(some_ids(1, 5), cache)
    assert cache.length == 20


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(num_heads=5), "num_heads: got 5, needs a divisor of width = 32"),
        (dict(num_layers=0), "num_layers: got 0, needs a whole number >= 1 and below"),
        (dict(width=-32), "width: got -32"),
        (dict(vocab_size=61.0), "vocab_size: got 61.0"),
        (dict(context_length=True), "context_length: got True"),
        (dict(width="32"), "width: got '32'"),
        (dict(vocab_size=10**19), "vocab_size: got 10000"),
        (dict(norm_eps=0.0), "norm_eps: got 0.0, needs more than 0, below 1"),
        (dict(norm_eps=math.nan), "norm_eps: got nan"),
        (dict(norm_eps="1e-5"), "norm_eps: got '1e-5'"),
    ],
)
def test_inconsistent_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_configurations_refuse_unknown_fields_and_changes():
    with pytest.raises(TypeError, match="n_head"):
        dataclasses.replace(CONFIG, n_head=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.width = 64
    assert CONFIG.mlp_width == 128


def test_a_compiled_model_is_one_graph_with_the_same_logits():
    model, ids = ours(), some_ids()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert error(compiled(ids), model(ids)) < 1e-12


@pytest.mark.parametrize("more", [-1, 1])
def test_a_cache_of_another_model_is_refused_and_left_alone(more):
    cache = GPT2(dataclasses.replace(CONFIG, num_layers=CONFIG.num_layers + more)).new_cache()
    with pytest.raises(ValueError, match=r"cache: got .* layers, needs the model's"):
        GPT2(CONFIG)(torch.zeros(1, 3, dtype=torch.int64), cache)
    assert cache.length == 0


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_the_cache_of_another_kind_of_model_is_refused(kind):
    other = OneMemory(OneMemoryConfig(kind, 61, width=32, num_layers=CONFIG.num_layers))
    cache = other.new_cache()
    with pytest.raises(ValueError, match="memory: got Cache, needs a KVCache"):
        GPT2(CONFIG)(some_ids(B=1), cache)
    assert cache.length == 0
