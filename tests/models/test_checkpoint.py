"""Checkpoints in the public layout: what is read, and what is refused with a full account."""

import dataclasses
import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmcourse.models import GPT2, CheckpointError, GPT2Config, checkpoint

CONFIG = GPT2Config(vocab_size=31, context_length=16, width=8, num_layers=2, num_heads=2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT2(CONFIG)


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder, remove=(), **changes):
    path = folder / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in remove}
    path.write_text(json.dumps(config | changes))


def edit_tensors(folder, change):
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def same(a, b):
    ids = torch.arange(16)[None]
    return torch.equal(a(ids), b(ids))


def refused(path):
    with pytest.raises(CheckpointError) as caught:
        GPT2.from_pretrained(path)
    return str(caught.value)


# What is read


def test_the_layout_is_the_published_one(folder):
    tensors = load_file(folder / "model.safetensors")
    assert sorted(n for n in tensors if not n.startswith("h.1.")) == [
        "h.0.attn.c_attn.bias",
        "h.0.attn.c_attn.weight",
        "h.0.attn.c_proj.bias",
        "h.0.attn.c_proj.weight",
        "h.0.ln_1.bias",
        "h.0.ln_1.weight",
        "h.0.ln_2.bias",
        "h.0.ln_2.weight",
        "h.0.mlp.c_fc.bias",
        "h.0.mlp.c_fc.weight",
        "h.0.mlp.c_proj.bias",
        "h.0.mlp.c_proj.weight",
        "ln_f.bias",
        "ln_f.weight",
        "wpe.weight",
        "wte.weight",
    ]
    assert tensors["h.0.attn.c_attn.weight"].shape == (8, 24)  # [in, out]
    assert tensors["h.0.mlp.c_proj.weight"].shape == (32, 8)


def test_the_published_files_masks_head_and_bookkeeping_are_accepted(folder, model):
    mask = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
    extra = {f"h.{i}.attn.bias": mask.clone() for i in range(2)}
    extra |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(2)}
    edit_tensors(folder, lambda t: t | extra | {"lm_head.weight": t["wte.weight"].clone()})
    edit_config(
        folder,
        remove=["reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"],
        architectures=["GPT2LMHeadModel"],
        attn_pdrop=0.1,
        bos_token_id=50256,
        embd_pdrop=0.1,
        eos_token_id=50256,
        initializer_range=0.02,
        n_ctx=16,
        resid_pdrop=0.1,
        summary_activation=None,
        summary_first_dropout=0.1,
        summary_proj_to_labels=True,
        summary_type="cls_index",
        summary_use_proj=True,
        task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
        torch_dtype="float32",
        transformers_version="4.30.0",
        use_cache=True,
    )
    assert same(GPT2.from_pretrained(folder), model)


def test_names_with_and_without_prefix_are_read(folder, model):
    edit_tensors(folder, lambda t: {f"transformer.{n}": x for n, x in t.items()})
    assert same(GPT2.from_pretrained(folder), model)


@pytest.mark.parametrize("max_shard_bytes", [1, 2000, 10**6])
def test_any_number_of_shards_is_one_model(tmp_path, model, max_shard_bytes):
    model.save_pretrained(tmp_path, max_shard_bytes=max_shard_bytes)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    if max_shard_bytes == 10**6:
        assert files == ["model.safetensors"]
    else:
        assert len(files) > 3
        assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    assert same(GPT2.from_pretrained(tmp_path), model)


def test_saving_again_leaves_nothing_of_the_old_weights(tmp_path, model):
    model.save_pretrained(tmp_path, max_shard_bytes=2000)
    torch.manual_seed(1)
    other = GPT2(CONFIG)
    other.save_pretrained(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert same(GPT2.from_pretrained(tmp_path), other)


@pytest.mark.parametrize("fails", ["save_file", "_write_json"])
def test_a_save_that_fails_leaves_the_old_weights(folder, model, monkeypatch, fails):
    def full_disk(*args, **options):
        raise OSError("no space left")

    torch.manual_seed(1)
    monkeypatch.setattr(checkpoint, fails, full_disk)
    with pytest.raises(OSError, match="no space"):
        GPT2(CONFIG).save_pretrained(folder)
    assert same(GPT2.from_pretrained(folder), model)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_save_that_is_stopped_among_its_files_never_leaves_new_among_old(
    tmp_path, model, monkeypatch
):
    model.save_pretrained(tmp_path, max_shard_bytes=2000)
    move, moved = os.replace, []

    def stopped(source, target):
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(move(source, target))

    monkeypatch.setattr(checkpoint.os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        GPT2(CONFIG).save_pretrained(tmp_path, max_shard_bytes=2000)
    with pytest.raises(CheckpointError, match="has neither"):
        GPT2.from_pretrained(tmp_path)


def test_links_are_replaced_and_what_they_point_to_is_left_alone(
    folder, model, tmp_path_factory
):
    links = tmp_path_factory.mktemp("links")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    GPT2(dataclasses.replace(CONFIG, width=4)).save_pretrained(links)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert GPT2.from_pretrained(links).config.width == 4


def test_a_loaded_model_does_not_change_with_its_file(folder, model):
    loaded = GPT2.from_pretrained(folder)
    path = folder / "model.safetensors"
    with open(path, "r+b") as file:  # in place: the same file, other numbers
        file.seek(-1000, os.SEEK_END)
        file.write(bytes(1000))
    assert not same(GPT2.from_pretrained(folder), model)
    assert same(loaded, model)


def test_weights_keep_their_dtype_unless_another_is_asked_for(folder, model):
    edit_tensors(folder, lambda t: {n: x.half() for n, x in t.items()})
    assert GPT2.from_pretrained(folder).token_embedding.weight.dtype == torch.float16
    wide = GPT2.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(wide.token_embedding.weight, model.token_embedding.weight.half().float())


def test_loaded_weights_can_be_trained(folder):
    model = GPT2.from_pretrained(folder)
    model(torch.arange(16)[None]).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_id_is_fetched_through_the_hub_and_a_folder_is_not(folder, model, monkeypatch):
    asked = []

    def fetch(repo_id, allow_patterns):
        asked.append((repo_id, allow_patterns))
        return str(folder)

    monkeypatch.setattr(checkpoint, "snapshot_download", fetch)
    assert same(GPT2.from_pretrained(folder), model)
    assert asked == []
    assert same(GPT2.from_pretrained("openai-community/gpt2"), model)
    assert same(GPT2.from_pretrained("gpt2"), model)
    assert [repo for repo, _ in asked] == ["openai-community/gpt2", "gpt2"]
    assert "config.json" in asked[0][1]


# What is refused


def test_a_repository_that_cannot_be_fetched_is_named_with_the_reason(monkeypatch):
    def fetch(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(checkpoint, "snapshot_download", fetch)
    message = refused("nobody/nothing")
    assert "nobody/nothing is neither a folder here nor a repository" in message
    assert "no route to host" in message


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "a/b/c", "../up", "a//b"])
def test_a_path_that_is_no_folder_never_asks_the_network(name, monkeypatch):
    monkeypatch.setattr(checkpoint, "snapshot_download", lambda *a, **k: pytest.fail("asked"))
    assert "no such folder" in refused(name)


@pytest.mark.parametrize("name", ["", " ", None, b"folder", 3, "x" * 5000, "nul\0"])
def test_what_cannot_be_a_path_is_refused(name, monkeypatch):
    def not_found(*args, **kwargs):
        raise OSError("no such repository")

    monkeypatch.setattr(checkpoint, "snapshot_download", not_found)
    assert refused(name)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, "float16"])
def test_a_dtype_that_no_weight_has_is_refused(folder, dtype):
    with pytest.raises(CheckpointError, match="dtype: got"):
        GPT2.from_pretrained(folder, dtype=dtype)


def test_weights_in_eight_bits_are_refused(folder):
    edit_tensors(folder, lambda t: {n: x.to(torch.float8_e4m3fn) for n, x in t.items()})
    assert "not supported: ln_f.bias is stored as F8_E4M3, only F64 or F32" in refused(folder)


def test_a_model_without_values_leaves_the_saved_one_alone(folder, model):
    with torch.device("meta"):
        empty = GPT2(CONFIG)
    with pytest.raises(ValueError, match="no weights"):
        empty.save_pretrained(folder)
    assert same(GPT2.from_pretrained(folder), model)


@pytest.mark.parametrize("size", [0, -1, 2.5, "5GB"])
def test_a_limit_of_a_shard_that_is_no_count_is_refused(tmp_path, model, size):
    with pytest.raises(ValueError, match="max_shard_bytes: got"):
        model.save_pretrained(tmp_path, max_shard_bytes=size)


@pytest.mark.parametrize(
    "field, value",
    [("shape", [31, 9]), ("dtype", "F16"), ("dtype", "Q4"), ("data_offsets", [0, 8])],
)
def test_a_header_that_lies_about_its_data_is_refused(folder, field, value):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["wte.weight"][field] = value
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    assert "model.safetensors is truncated or not a safetensors file" in refused(folder)


def test_a_folder_of_links_is_read(folder, model, tmp_path_factory):
    linked = tmp_path_factory.mktemp("linked")
    for file in folder.iterdir():
        (linked / file.name).symlink_to(file)
    assert same(GPT2.from_pretrained(linked), model)


def test_a_file_instead_of_a_folder(folder):
    assert "is a file" in refused(folder / "model.safetensors")


def test_a_missing_configuration(folder):
    (folder / "config.json").unlink()
    assert f"{folder} has no config.json" in refused(folder)


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff\xfe", b"[" * 10**5])
def test_a_broken_configuration(folder, text):
    (folder / "config.json").write_bytes(text)
    assert "config.json" in refused(folder)


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in refused(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} is truncated" in refused(folder)


@pytest.mark.parametrize(
    "key, value",
    [
        ("scale_attn_by_inverse_layer_idx", True),
        ("scale_attn_weights", False),
        ("reorder_and_upcast_attn", True),
        ("activation_function", "relu"),
        ("activation_function", "gelu"),
        ("tie_word_embeddings", False),
        ("add_cross_attention", True),
        ("model_type", "gpt_neo"),
        ("n_inner", 16),
        ("n_ctx", 8),
    ],
)
def test_settings_of_another_computation_are_refused(folder, key, value):
    edit_config(folder, **{key: value})
    assert f"not supported: {key} = {json.dumps(value)}, only" in refused(folder)


def test_the_full_width_of_the_mlp_may_be_spelt_out(folder, model):
    edit_config(folder, n_inner=32)
    assert same(GPT2.from_pretrained(folder), model)


def test_all_problems_of_a_configuration_are_listed(folder):
    edit_config(folder, remove=["n_head", "n_layer"], rotary=True, n_inner=7)
    message = refused(folder)
    for part in [
        "missing: n_head",
        "missing: n_layer",
        "unknown, may change the computation: rotary = true",
        "not supported: n_inner = 7, only null or 32",
    ]:
        assert part in message


@pytest.mark.parametrize("key, value", [("n_head", 3), ("n_layer", 0), ("n_embd", "8")])
def test_impossible_numbers_are_refused(folder, key, value):
    edit_config(folder, **{key: value})
    assert "config.json" in refused(folder)


def test_missing_unexpected_and_misshapen_tensors_are_all_listed(folder):
    def change(t):
        del t["ln_f.bias"], t["h.1.mlp.c_fc.weight"]
        t["h.0.attn.c_attn.weight"] = t["h.0.attn.c_attn.weight"].T.contiguous()
        return t | {"h.2.ln_1.weight": torch.zeros(8), "h.7.attn.bias": torch.zeros(1)}

    edit_tensors(folder, change)
    lines = {line.strip() for line in refused(folder).splitlines()[1:]}
    assert lines == {
        "missing: ln_f.bias [8]",
        "missing: h.1.mlp.c_fc.weight [8, 32]",
        "unexpected: h.2.ln_1.weight [8]",
        "unexpected: h.7.attn.bias [1]",
        "misshapen: h.0.attn.c_attn.weight is [24, 8], needs [8, 24]",
    }


def test_a_head_of_its_own_is_refused(folder):
    edit_tensors(folder, lambda t: t | {"lm_head.weight": t["wte.weight"] + 1})
    assert "lm_head.weight differs from wte.weight" in refused(folder)


def test_a_name_with_and_without_prefix_at_once_is_refused(folder):
    edit_tensors(folder, lambda t: t | {"transformer.ln_f.bias": t["ln_f.bias"] + 1})
    assert "twice: ln_f.bias" in refused(folder)


def test_weights_that_are_no_floats_are_refused(folder):
    edit_tensors(folder, lambda t: t | {"ln_f.bias": torch.zeros(8, dtype=torch.int64)})
    assert "ln_f.bias is stored as I64, only F64 or F32 or BF16 or F16" in refused(folder)


def test_several_dtypes_need_a_choice(folder):
    edit_tensors(folder, lambda t: t | {"ln_f.bias": torch.zeros(8, dtype=torch.float16)})
    assert "several dtypes" in refused(folder)
    assert (
        GPT2.from_pretrained(folder, dtype=torch.float32).final_norm.bias.dtype == torch.float32
    )


def edit_index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


@pytest.fixture
def sharded(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_bytes=2000)
    return tmp_path


def test_a_missing_shard_is_named(sharded):
    victim = sorted(sharded.glob("model-*.safetensors"))[1]
    victim.unlink()
    assert f"missing file: {victim.name}" in refused(sharded)


def test_an_index_that_does_not_match_its_shards_is_refused(sharded):
    edit_index(sharded, lambda m: m.update({"ln_f.bias": m["wte.weight"]}))
    assert "ln_f.bias is not in model-00001" in refused(sharded)


def test_an_index_may_not_leave_the_folder(sharded):
    edit_index(sharded, lambda m: m.update({"ln_f.bias": "../elsewhere.safetensors"}))
    assert "not a file name: ../elsewhere.safetensors" in refused(sharded)


def test_an_index_without_a_map_is_refused(sharded):
    (sharded / "model.safetensors.index.json").write_text("{}")
    assert "has no weight_map" in refused(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded):
    last = sorted(sharded.glob("model-*.safetensors"))[-1]
    save_file(load_file(last) | {"wte.weight": torch.zeros(31, 8)}, last)
    assert "wte.weight is also in model-00001" in refused(sharded)
