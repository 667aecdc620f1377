"""The dry run: sizes from headers alone, the same refusals as loading, and no number read."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from huggingface_hub.utils import (
    SafetensorsFileMetadata,
    SafetensorsRepoMetadata,
    TensorInfo,
)
from safetensors.torch import load_file, save_file

from llmcourse import accounting
from llmcourse.models import (
    GPT2,
    CheckpointError,
    GPT2Config,
    KimiK3,
    KimiK3Config,
    KimiLinear,
    KimiLinearConfig,
    checkpoint,
    dry_run,
    kimi_k3,
    mxfp4,
    tensor_files,
)

MODELS = {
    "gpt2": (GPT2, dataclasses.replace(GPT2Config.tiny(), vocab_size=96)),
    "kimi_linear": (KimiLinear, dataclasses.replace(KimiLinearConfig.tiny(), vocab_size=96)),
    "kimi_k3": (KimiK3, dataclasses.replace(KimiK3Config.tiny(), vocab_size=96)),
}
SELECTION_BIASES = {"gpt2": 0, "kimi_linear": 3 * 8, "kimi_k3": 4 * 16}


@pytest.fixture(params=MODELS)
def saved(request, tmp_path):
    """A folder with a checkpoint, in shards, and the model that is in it."""
    make, config = MODELS[request.param]
    torch.manual_seed(0)
    model = make(config)
    model.save_pretrained(tmp_path, max_shard_bytes=400_000)
    return tmp_path, model, request.param


@pytest.fixture
def no_numbers(monkeypatch):
    """Whoever opens a file to read tensors from it fails."""
    monkeypatch.setattr(tensor_files, "safe_open", lambda *a, **k: pytest.fail("opened"))


# What it says


def test_numbers_by_part_are_those_of_accounting(saved, no_numbers):
    folder, model, kind = saved
    report = type(model).inspect_pretrained(folder)
    numbers, expected = dict(report.numbers), accounting.parameter_parts(model.config)
    if kind == "kimi_linear":  # the biases are counted apart there
        assert numbers.pop("selection biases") == SELECTION_BIASES[kind]
    assert numbers == expected
    assert report.parameters == sum(x.numel() for x in model.state_dict().values())
    assert report.config == model.config


def test_bytes_are_those_of_the_files(saved, no_numbers):
    folder, model, _ = saved
    report = type(model).inspect_pretrained(str(folder))
    paths = list(folder.glob("*.safetensors"))
    assert report.files == len(paths) > 2
    data = 0
    for path in paths:
        with open(path, "rb") as file:
            data += path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")
    assert report.stored_bytes == data
    assert report.bytes_by_dtype == {"F32": data}
    assert sum(report.bytes_by_part.values()) == data
    assert report.not_read == {}


@pytest.mark.parametrize("dtype", checkpoint.DTYPES)
def test_what_it_would_take_is_what_it_takes(saved, dtype):
    folder, model, _ = saved
    report = type(model).inspect_pretrained(folder)
    loaded = type(model).from_pretrained(folder, dtype=dtype)
    assert report.loaded_bytes(dtype) == sum(x.nbytes for x in loaded.state_dict().values())


def test_a_dtype_that_no_weight_has_is_refused(saved):
    folder, model, _ = saved
    with pytest.raises(CheckpointError, match=r"dtype: got torch\.int8"):
        type(model).inspect_pretrained(folder).loaded_bytes(torch.int8)


def test_printed_it_is_a_table_with_every_part(saved):
    folder, model, _ = saved
    report = type(model).inspect_pretrained(folder)
    lines = str(report).splitlines()
    assert lines[0] == f"{type(model).__name__} in {folder}, {report.files} files"
    for part, count in report.numbers.items():
        size = report.bytes_by_part[part]
        (line,) = [x for x in lines if x.startswith(f"{part}  ")]
        assert line.split()[-3:] == [f"{count:,}", f"{size:,}", "F32"]
    assert f"{report.parameters:,}" in next(x for x in lines if x.startswith("in all"))
    assert max(map(len, lines[1:])) < 88
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.files = 1


def test_experts_in_mxfp4_are_bytes_and_load_as_numbers(tmp_path):
    _, config = MODELS["kimi_k3"]
    model = KimiK3(config)
    model.save_pretrained(tmp_path, mxfp4_experts=True)
    report = KimiK3.inspect_pretrained(tmp_path)
    experts = report.numbers["routed experts"]
    assert report.stored["routed experts"] == {"U8": experts * 17 // 32}  # 16 bytes and a scale
    assert report.parameters == sum(x.numel() for x in model.state_dict().values())
    loaded = KimiK3.from_pretrained(tmp_path, dtype=torch.bfloat16)
    held = sum(x.nbytes for x in loaded.state_dict().values())
    assert report.loaded_bytes(torch.bfloat16) == held


def test_what_the_model_does_not_read_is_counted_apart(tmp_path):
    KimiK3(MODELS["kimi_k3"][1]).save_pretrained(tmp_path / "k3")
    KimiLinear(MODELS["kimi_linear"][1]).save_pretrained(tmp_path / "kl")
    GPT2(MODELS["gpt2"][1]).save_pretrained(tmp_path / "gpt2")
    extra = {"vision_tower.proj.weight": torch.zeros(3, 2, dtype=torch.float16)}
    mask = {"h.0.attn.bias": torch.zeros(1, 1, 256, 256, dtype=torch.bool)}
    for folder, tensors in {"k3": extra, "gpt2": mask, "kl": {}}.items():
        path = tmp_path / folder / "model.safetensors"
        save_file(load_file(path) | tensors, path)
    k3 = KimiK3.inspect_pretrained(tmp_path / "k3")
    assert k3.not_read == {"F16": 12} and "not read" in str(k3)
    assert GPT2.inspect_pretrained(tmp_path / "gpt2").not_read == {"BOOL": 65536}
    assert KimiLinear.inspect_pretrained(tmp_path / "kl").not_read == {}


def test_stacked_experts_and_joined_convolutions_have_the_same_sizes(tmp_path):
    model = KimiLinear(MODELS["kimi_linear"][1])
    model.save_pretrained(tmp_path / "apart")
    config = json.loads((tmp_path / "apart" / "config.json").read_text())
    theirs = transformers.KimiLinearForCausalLM.from_pretrained(tmp_path / "apart")
    theirs.save_pretrained(tmp_path / "stacked", save_original_format=False)
    (tmp_path / "stacked" / "config.json").write_text(json.dumps(config))
    apart, stacked = (KimiLinear.inspect_pretrained(tmp_path / x) for x in ("apart", "stacked"))
    names = load_file(tmp_path / "stacked" / "model.safetensors").keys()
    assert any(name.endswith("experts.gate_up_proj") for name in names)
    assert dataclasses.replace(stacked, where=apart.where) == apart


@pytest.mark.parametrize(
    "size, text",
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.50 KiB"), (3 << 30, "3.00 GiB")],
)
def test_sizes_are_said_in_their_largest_unit(size, text):
    assert dry_run.binary(size) == text
    assert dry_run.binary(5 << 50) == "5120.00 TiB"


# What it refuses


def both_refuse(make, folder):
    """The one message with which loading and the dry run refuse a folder."""
    messages = []
    for way in (make.from_pretrained, make.inspect_pretrained):
        with pytest.raises(CheckpointError) as caught:
            way(folder)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return messages[0]


def test_it_lists_the_same_as_loading(saved):
    folder, model, _ = saved
    path = max(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size)
    tensors = load_file(path)
    first, *_ = tensors
    save_file({"extra": torch.zeros(2), first: tensors[first][..., :-1].contiguous()}, path)
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    placed = {n: s for n, s in weight_map.items() if n == first or s != path.name}
    index.write_text(json.dumps({"weight_map": placed | {"extra": path.name}}))
    message = both_refuse(type(model), folder)
    for line in [
        "unexpected: extra [2]",
        f"misshapen: {first} is {list(tensors[first][..., :-1].shape)}, needs",
        *(f"missing: {name} [" for name in tensors if name != first),
    ]:
        assert f"\n  {line}" in message
    assert message.count("\n") == 1 + len(tensors)


def test_it_refuses_the_same_kinds_of_numbers_as_loading(saved):
    folder, model, _ = saved
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    name = min(tensors, key=lambda n: tensors[n].numel())
    save_file(tensors | {name: tensors[name].long()}, path)
    message = both_refuse(type(model), folder)
    assert message.endswith(f"{name} is stored as I64, only F64 or F32 or BF16 or F16")


def test_mxfp4_in_other_kinds_of_numbers_is_refused(tmp_path):
    KimiK3(MODELS["kimi_k3"][1]).save_pretrained(tmp_path, mxfp4_experts=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(n for n in tensors if n.endswith("w1.weight_scale"))
    save_file(tensors | {name: tensors[name].to(torch.int16)}, path)
    assert both_refuse(KimiK3, tmp_path).endswith(f"{name} is stored as I16, only U8")


def test_a_head_of_another_shape_is_refused_and_of_other_numbers_when_loading(tmp_path):
    GPT2(MODELS["gpt2"][1]).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for head in (torch.zeros(96, 7), torch.zeros(96, 128, dtype=torch.int64)):
        save_file(tensors | {"lm_head.weight": head}, path)
        assert "lm_head.weight differs from wte.weight" in both_refuse(GPT2, tmp_path)
    save_file(tensors | {"lm_head.weight": tensors["wte.weight"] + 1}, path)
    assert GPT2.inspect_pretrained(tmp_path).not_read == {"F32": 96 * 128 * 4}
    with pytest.raises(CheckpointError, match=r"differs from wte\.weight"):
        GPT2.from_pretrained(tmp_path)


# From the Hub


def as_metadata(folder):
    """What huggingface_hub answers for a repository with the files of this folder."""
    files = {}
    for path in folder.glob("*.safetensors"):
        header = tensor_files.read_header(path)
        files[path.name] = SafetensorsFileMetadata(
            metadata={}, tensors={name: TensorInfo(**entry) for name, entry in header.items()}
        )
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] if index.exists() else {}
    return SafetensorsRepoMetadata(
        metadata=None, sharded=index.exists(), weight_map=weight_map, files_metadata=files
    )


@pytest.fixture
def hub(monkeypatch, no_numbers):
    """Connect the Hub's client to a folder; all that it was asked for."""
    asked = []

    def connect(folder, change=lambda metadata: None):
        metadata = as_metadata(folder)
        change(metadata)

        def download(repo_id, filename):
            asked.append(f"{repo_id}/{filename}")
            return str(folder / filename)

        def headers(repo_id):
            asked.append(repo_id)
            return metadata

        monkeypatch.setattr(tensor_files, "hf_hub_download", download)
        monkeypatch.setattr(tensor_files, "get_safetensors_metadata", headers)
        return asked

    monkeypatch.setattr(checkpoint, "snapshot_download", lambda *a, **k: pytest.fail("all"))
    return connect


def test_from_the_hub_only_the_configuration_and_headers_are_fetched(saved, hub):
    folder, model, _ = saved
    asked = hub(folder)
    there = type(model).inspect_pretrained("someone/something")
    here = type(model).inspect_pretrained(folder)
    assert dataclasses.replace(there, where=str(folder)) == here
    assert there.where == "someone/something"
    assert asked == ["someone/something/config.json", "someone/something"]


def test_a_single_file_on_the_hub(tmp_path, hub):
    model = GPT2(MODELS["gpt2"][1])
    model.save_pretrained(tmp_path)
    hub(tmp_path)
    assert GPT2.inspect_pretrained("gpt2").parameters == accounting.parameters(model.config)


def lie(**entry):
    def change(metadata):
        tensors = next(iter(metadata.files_metadata.values())).tensors
        name = next(iter(tensors))
        tensors[name] = SimpleNamespace(**(vars(tensors[name]) | entry))

    return change


def leave(metadata):
    metadata.weight_map["wte.weight"] = "../elsewhere.safetensors"


def forget(metadata):
    del metadata.files_metadata


@pytest.mark.parametrize(
    "change, message",
    [
        (lie(shape=[1, 2]), "does not take the bytes"),
        (lie(shape="12"), "its shape cannot be: 12"),
        (lie(dtype="Q4"), "its dtype is unknown: Q4"),
        (lie(data_offsets=(8, 8)), "does not take the bytes 8 to 8"),
        (leave, "not a file name: ../elsewhere.safetensors"),
        (forget, "repository that could be fetched .AttributeError"),
    ],
)
def test_headers_from_the_hub_are_believed_no_more_than_others(saved, hub, change, message):
    folder, model, _ = saved
    hub(folder, change)
    with pytest.raises(CheckpointError, match=message):
        type(model).inspect_pretrained("someone/something")


def test_a_repository_that_cannot_be_fetched_is_named_with_the_reason(monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tensor_files, "hf_hub_download", fail)
    with pytest.raises(CheckpointError, match=r"nobody/nothing is neither .* no route to host"):
        KimiK3.inspect_pretrained("nobody/nothing")


# Nothing but headers is read


def bytes_read():
    """All that this process has read from files, also from those held in memory."""
    if not Path("/proc/self/io").exists():
        pytest.skip("only Linux counts what a process reads")
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def published_tensors(config):
    """Every tensor of a Kimi K3 as it is released: name -> (shape, kind of number)."""
    with torch.device("meta"):
        model = KimiK3(config)
    tensors = {}
    for name, tensor in model.state_dict().items():
        kind = "F32" if name.endswith(kimi_k3.EXACT) else "BF16"
        for public, x in kimi_k3._to_public(name, tensor, config).items():
            if ".experts." in name:
                parts = mxfp4.stored_shapes(public, tuple(x.shape))
                tensors |= {part: (shape, "U8") for part, shape in parts.items()}
            else:
                tensors[public] = tuple(x.shape), kind
    return tensors


def write_sparse(path, tensors):
    """A safetensors file whose numbers take no space on the disk; the bytes of its header."""
    header, end = {}, 0
    for name, (shape, kind) in tensors.items():
        begin, end = end, end + math.prod(shape) * checkpoint.BITS[kind] // 8
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return 8 + len(text)


def write_sparse_checkpoint(folder, config, shards):
    """A folder of a Kimi K3 that is holes, but for config.json, the index and the headers."""
    public = kimi_k3.config_to_public(config)
    public["quantization_config"] = kimi_k3.MXFP4_SCHEME
    (folder / "config.json").write_text(json.dumps(public))
    tensors = published_tensors(config)
    names, each, weight_map, written = list(tensors), -(-len(tensors) // shards), {}, 0
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        shard = {name: tensors[name] for name in names[i * each : (i + 1) * each]}
        written += write_sparse(folder / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return written + sum(path.stat().st_size for path in folder.glob("*.json"))


def check_sparse(folder, config, shards):
    headers = write_sparse_checkpoint(folder, config, shards)
    before = bytes_read()
    report = KimiK3.inspect_pretrained(folder)
    assert bytes_read() - before < headers + 100_000  # what the modules of Python's own take
    assert report.files == shards
    assert report.parameters == accounting.parameters(config)
    stored = sum(p.stat().st_size for p in folder.iterdir())
    assert report.stored_bytes == stored - headers
    return report


def test_no_number_is_read(tmp_path, no_numbers):
    config = dataclasses.replace(KimiK3Config.tiny(), width=7168, num_experts=64)
    report = check_sparse(tmp_path, config, shards=12)
    assert report.stored_bytes > 10**8


@pytest.mark.slow
def test_all_of_kimi_k3_is_sized_from_its_headers(tmp_path, no_numbers):
    report = check_sparse(tmp_path, KimiK3Config.kimi_k3(), shards=96)
    assert report.parameters == 2_779_484_476_000
    assert report.bytes_by_part["routed experts"] == 2_722_740_830_208 * 17 // 32
    assert report.stored_bytes == pytest.approx(1.56e12, rel=0.01)  # as published
