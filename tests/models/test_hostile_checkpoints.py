"""Checkpoints made to harm: every loader refuses them with one error, and runs nothing."""

import json
import os
import pickle
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmcourse.models import (
    GPT2,
    CheckpointError,
    GPT2Config,
    KimiK3,
    KimiK3Config,
    KimiLinear,
    KimiLinearConfig,
    tensor_files,
)

SMALL = {"vocab_size": 16, "width": 8, "num_layers": 2}
KDA = {"mla_layers": (2,), "kda_heads": 2, "kda_head_width": 4}
MLA = {"mla_heads": 2, "kv_rank": 4, "key_width": 4, "shared_key_width": 2, "value_width": 4}
MOE = {"dense_width": 16, "num_experts": 3, "num_active": 2, "expert_width": 8}
CONFIGS = {
    GPT2: GPT2Config(context_length=8, num_heads=2, **SMALL),
    KimiLinear: KimiLinearConfig(**SMALL, **KDA, **MLA, **MOE),
    KimiK3: KimiK3Config(
        **SMALL, **KDA, **MLA, **MOE, query_rank=4, latent_width=6, block_size=1
    ),
}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(params=CONFIGS, ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.fixture
def model(make):
    torch.manual_seed(0)
    return make(CONFIGS[make])


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture
def sharded(model, tmp_path):
    model.save_pretrained(tmp_path / "shards", max_shard_bytes=2000)
    return tmp_path / "shards"


def refused(make, folder):
    """Loading and the dry run refuse the folder; how."""
    messages = []
    for way in (make.from_pretrained, make.inspect_pretrained):
        with pytest.raises(CheckpointError) as caught:
            way(folder)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return messages[0]


def same(a, b):
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


# A file's header


def split(path):
    """The header's JSON, as text, and the numbers."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return content[8:end].decode(), content[end:]


def join(path, text, numbers, length=None):
    text = text if isinstance(text, bytes) else text.encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + text + numbers)


LENGTHS = {
    "0": lambda right, size: 0,
    "1": lambda right, size: 1,
    "one less": lambda right, size: right - 1,
    "one more": lambda right, size: right + 1,
    "all of the file and one": lambda right, size: size - 7,
    "as large as the library allows": lambda right, size: 100_000_000,
    "too large for the library": lambda right, size: 100_000_001,
    "2**31": lambda right, size: 2**31,
    "-1": lambda right, size: 2**64 - 1,
    "the least number": lambda right, size: 2**63,
}


@pytest.mark.parametrize("length", LENGTHS)
def test_wrong_lengths_of_the_header(make, folder, length):
    path = folder / WEIGHTS
    text, numbers = split(path)
    wrong = LENGTHS[length](len(text.encode()), path.stat().st_size)
    join(path, text, numbers, wrong)
    assert f"{path} is truncated or not a safetensors file" in refused(make, folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"{}{}",
        b"[]",
        b"null",
        b'"' + b"a" * 99 + b'"',
        b"\xff\xfe{}",
        "{}".encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 120 + b"]" * 120 + b"}",
        b'{"a":NaN}',
        b'{"a":' + b"1" * 5000 + b"}",
        b"{}",
    ],
    ids=range(14),
)
def test_headers_that_are_no_table_of_tensors(make, folder, text):
    path = folder / WEIGHTS
    _, numbers = split(path)
    join(path, text, numbers)
    assert f"{path} is truncated or not a safetensors file" in refused(make, folder)


def edited(path, change):
    """Change the header, which is given with the name of its second tensor in the file."""
    text, numbers = split(path)
    header = json.loads(text)
    header.pop("__metadata__")
    order = sorted(header, key=lambda name: header[name]["data_offsets"])
    change(header, order[1])
    join(path, json.dumps(header), numbers)


def put(key, value):
    def change(header, name):
        header[name][key] = value(header[name]) if callable(value) else value

    return change


def moved(by_begin, by_end):
    def value(entry):
        begin, end = entry["data_offsets"]
        return [begin + by_begin, end + by_end]

    return put("data_offsets", value)


def renamed(header, name):
    header[name] = [header[name]]


def described_less(header, name):
    del header[max(header, key=lambda n: header[n]["data_offsets"])]


HOLE, OVERLAP = "begins after a hole", "overlaps another"


@pytest.mark.parametrize(
    "change, words",
    [
        (put("dtype", "Q4"), "its dtype is unknown: Q4"),
        (put("dtype", None), "its dtype is unknown: None"),
        (put("dtype", ["F32"]), "its dtype is unknown"),
        (put("dtype", "F64"), "does not take the bytes"),
        (put("dtype", "F4"), "does not take the bytes"),
        (put("shape", [2**62, 2**62]), "does not take the bytes"),
        (put("shape", [10**30]), "its shape cannot be"),
        (put("shape", [-1]), "its shape cannot be"),
        (put("shape", [-2, -4]), "its shape cannot be"),
        (put("shape", [0]), "its shape cannot be"),
        (put("shape", [2**40, 0]), "its shape cannot be"),
        (put("shape", [1] * 65), "its shape cannot be"),
        (put("shape", [2] * 10**6), "its shape cannot be"),
        (put("shape", [8.0]), "its shape cannot be"),
        (put("shape", [True]), "its shape cannot be"),
        (put("shape", None), "its shape cannot be"),
        (put("shape", "8"), "its shape cannot be"),
        (put("shape", lambda entry: [*entry["shape"], 2]), "does not take the bytes"),
        (put("data_offsets", None), "its offsets are no two places"),
        (put("data_offsets", [0]), "its offsets are no two places"),
        (put("data_offsets", [-8, 8]), "its offsets are no two places"),
        (put("data_offsets", [0, 2**70]), "its offsets are no two places"),
        (put("data_offsets", [0, 1.5]), "its offsets are no two places"),
        (put("data_offsets", lambda entry: entry["data_offsets"][::-1]), "does not take"),
        (put("data_offsets", [10**12, 10**12]), "does not take the bytes"),
        (moved(10**12, 10**12), HOLE),
        (moved(4, 4), HOLE),
        (moved(-4, -4), OVERLAP),
        (lambda header, name: header[name].pop("shape"), "needs an object with dtype, shape"),
        (renamed, "needs an object with dtype, shape and data_offsets"),
        (lambda header, name: header.update({name: None}), "needs an object with dtype"),
        (lambda header, name: header.pop(name), HOLE),
        (described_less, "bytes of numbers are described"),
    ],
)
def test_headers_that_lie(make, folder, change, words):
    path = folder / WEIGHTS
    edited(path, change)
    message = refused(make, folder)
    assert f"{path} is truncated or not a safetensors file" in message and words in message
    assert len(message) < 10_000


@pytest.mark.parametrize("first", [True, False])
def test_a_name_that_is_there_twice(make, folder, first):
    path = folder / WEIGHTS
    text, numbers = split(path)
    name, entry = next(x for x in json.loads(text).items() if x[0] != "__metadata__")
    again = f'"{name}": {json.dumps(entry)}'
    join(
        path, f"{{{again}, {text[1:]}" if first else f"{text.rstrip()[:-1]}, {again}}}", numbers
    )
    assert f"{name} is there 2 times" in refused(make, folder)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 60, -100, -1])
def test_files_that_end_too_early(make, folder, kept):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} is truncated" in refused(make, folder)


def test_numbers_after_the_last_tensor(make, folder):
    with open(folder / WEIGHTS, "ab") as file:
        file.write(b"\0" * 4)
    assert "bytes of numbers are described" in refused(make, folder)


def test_what_is_no_file(make, folder):
    for name, create in {WEIGHTS: os.mkdir, "config.json": os.mkfifo}.items():
        (folder / name).unlink()
        create(folder / name)
        assert f"{folder / name} is not a file" in refused(make, folder)


def test_a_file_that_changes_between_its_header_and_its_numbers(make, folder, monkeypatch):
    def change(path):
        text, _ = split(path)
        header = {n: x for n, x in json.loads(text).items() if n != "__metadata__"}
        path.write_bytes(b"\0" * 100)
        return header

    monkeypatch.setattr(tensor_files, "read_header", change)
    with pytest.raises(CheckpointError, match="cannot be read"):
        make.from_pretrained(folder)


# Nothing is executed


class Payload:
    """What pickle would run when it reads this: the file `made` appears."""

    def __init__(self, made):
        self.made = made

    def __reduce__(self):
        return os.mkdir, (str(self.made),)


def test_a_pickle_in_place_of_weights_is_refused_and_not_run(make, folder, tmp_path):
    made = tmp_path / "made"
    path = folder / WEIGHTS
    path.write_bytes(pickle.dumps(Payload(made)))
    assert "is truncated or not a safetensors file" in refused(make, folder)
    torch.save({"a": Payload(made)}, path)
    assert "is truncated or not a safetensors file" in refused(make, folder)
    assert not made.exists()
    pickle.loads(pickle.dumps(Payload(made)))  # the payload is one
    assert made.exists()


def test_pickles_beside_the_weights_are_ignored(make, folder, model, tmp_path):
    made = tmp_path / "made"
    for name in ("pytorch_model.bin", "model.bin", "model.pt", "training_args.bin"):
        torch.save({"a": Payload(made)}, folder / name)
    index = {"weight_map": {"a": "pytorch_model.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "modeling.py").write_text(f"import os; os.mkdir({str(made)!r})")
    assert same(make.from_pretrained(folder), model)
    (folder / WEIGHTS).unlink()
    assert "has neither model.safetensors nor" in refused(make, folder)
    assert not made.exists()


# The index


def index_with(folder, **places):
    path = folder / INDEX
    content = json.loads(path.read_text())
    first = next(iter(content["weight_map"]))
    content["weight_map"][first] = places["file"]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "file",
    [
        "../checkpoint/model.safetensors",
        "..",
        ".",
        "",
        "/etc/passwd",
        "/tmp/model.safetensors",
        "sub/model.safetensors",
        "sub\\model.safetensors",
        "C:model.safetensors",
        "~/model.safetensors",
        "file:model.safetensors",
        "pytorch_model.bin",
        "model.safetensors.bin",
        "model.safetensors\0",
        "config.json",
        None,
        7,
        True,
        ["model.safetensors"],
        {"file": "model.safetensors"},
    ],
)
def test_an_index_may_name_safetensors_beside_it_and_nothing_else(make, sharded, file):
    index_with(sharded, file=file)
    message = refused(make, sharded)
    assert f"not a file name: {file}" in message
    assert "which may name .safetensors beside it" in message


@pytest.mark.parametrize("file", ["model-7.safetensors", "m" * 300 + ".safetensors"])
def test_an_index_that_names_what_is_not_there(make, sharded, file):
    index_with(sharded, file=file)
    assert f"missing file: {file}" in refused(make, sharded)


@pytest.mark.parametrize("weight_map", [None, [], "x", 3, [["a", "model.safetensors"]]])
def test_an_index_whose_map_is_none(make, sharded, weight_map):
    (sharded / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert "has no weight_map" in refused(make, sharded)


def test_an_index_of_nothing(make, sharded):
    (sharded / INDEX).write_text('{"weight_map": {}}')
    assert "missing: " in refused(make, sharded) or "0 tensors" in refused(make, sharded)


def test_an_index_with_a_name_twice_or_of_another_shard(make, sharded):
    content = json.loads((sharded / INDEX).read_text())["weight_map"]
    name, shard = next(iter(content.items()))
    text = json.dumps(content)
    twice = f'{{"weight_map": {{"{name}": "{shard}", {text[1:]}}}'
    (sharded / INDEX).write_text(twice)
    assert f"{name} is there 2 times" in refused(make, sharded)
    other = next(x for x in content.values() if x != shard)
    (sharded / INDEX).write_text(json.dumps({"weight_map": content | {name: other}}))
    assert f"{name} is not in {other}" in refused(make, sharded)


def test_a_tensor_in_two_shards(make, sharded):
    content = json.loads((sharded / INDEX).read_text())["weight_map"]
    name, shard = next(iter(content.items()))
    other = sharded / next(x for x in content.values() if x != shard)
    save_file(load_file(other) | {name: torch.zeros(3)}, other)
    assert f"{name} is also in" in refused(make, sharded)


def test_links_are_followed_as_the_hubs_cache_is_made_of_them(make, sharded, model, tmp_path):
    # The index may not leave the folder, but who made the folder may link out of it: whoever
    # can make links here can read those files already, and their content must be safetensors.
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in sharded.iterdir():
        (linked / file.name).symlink_to(file)
    assert same(make.from_pretrained(linked), model)
    shard = next(linked.glob("*.safetensors"))
    for target, words in {
        "gone": "missing file",
        "/etc/passwd": "not a safetensors file",
    }.items():
        shard.unlink()
        shard.symlink_to(target)
        assert words in refused(make, linked)
    shard.unlink()
    shard.symlink_to(shard.name)  # to itself
    assert "missing file" in refused(make, linked)


# Configurations that ask for more than there is


NUMBERS = {
    GPT2: ["n_layer"],
    KimiLinear: ["num_hidden_layers", "first_k_dense_replace", "num_experts"],
    KimiK3: ["num_hidden_layers", "first_k_dense_replace", "num_experts"],
}
SIZES = {
    GPT2: ["vocab_size", "n_positions", "n_embd", "n_head"],
    KimiLinear: ["vocab_size", "hidden_size", "kv_lora_rank", "intermediate_size"],
    KimiK3: ["vocab_size", "hidden_size", "q_lora_rank", "moe_intermediate_size"],
}


@pytest.mark.parametrize("value", [2**31 - 2, 2**31, 10**30])
def test_models_of_any_size_are_refused_before_they_are_made(make, folder, value):
    original = (folder / "config.json").read_text()
    for key in NUMBERS[make] + SIZES[make]:
        config = json.loads(original)
        part = config.get("text_config", config)
        assert key in part
        part[key] = value
        (folder / "config.json").write_text(json.dumps(config))
        assert refused(make, folder)


def test_all_sizes_at_their_largest(make, folder):
    config = json.loads((folder / "config.json").read_text())
    for key in SIZES[make]:
        config.get("text_config", config)[key] = 2**31 - 2
    (folder / "config.json").write_text(json.dumps(config))
    assert "no model can have these sizes" in refused(make, folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model_type": NaN}',
        b'{"a": Infinity}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": 1, "a": 2}',
    ],
    ids=range(11),
)
def test_configurations_that_are_no_json(make, folder, text):
    (folder / "config.json").write_bytes(text)
    assert "config.json is not readable JSON" in refused(make, folder)


@pytest.mark.parametrize("depth", [50, 90, 98, 99, 100, 300, 900, 990, 1000, 1100])
@pytest.mark.parametrize("key", ["model_type", "vocab_size", "unknown", "architectures"])
def test_nesting_of_any_depth_is_no_other_error(make, folder, depth, key):
    config = json.loads((folder / "config.json").read_text())
    config.get("text_config", config)[key] = 0
    text = json.dumps(config).replace(f'"{key}": 0', f'"{key}": {"[" * depth}{"]" * depth}')
    (folder / "config.json").write_text(text)
    try:
        make.inspect_pretrained(folder)
    except CheckpointError as error:
        assert len(str(error)) < 2000
    else:
        assert key == "architectures" and depth < 100


def test_the_length_of_a_header_is_unsigned(folder):
    # What the tests above rely on: -1 and 2**64 - 1 are the same eight bytes.
    assert struct.pack("<q", -1) == (2**64 - 1).to_bytes(8, "little")


def test_a_tensor_of_a_million_experts_is_unexpected_not_taken_apart(tmp_path):
    """Its numbers may be a hole in the file, which takes no space on a disk."""
    KimiLinear(CONFIGS[KimiLinear]).save_pretrained(tmp_path)
    path, million = tmp_path / WEIGHTS, 1_000_000
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, end = json.loads(content[8 : 8 + length]), len(content) - 8 - length
    name = "model.layers.1.mlp.experts.down_proj"
    entry = {"dtype": "F32", "shape": [million, 1, 1], "data_offsets": [end, end + 4 * million]}
    text = json.dumps(header | {name: entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    os.truncate(path, 8 + len(text) + end + 4 * million)
    with pytest.raises(
        CheckpointError, match=r"unexpected: .*down_proj \[1000000, 1, 1\]"
    ) as e:
        KimiLinear.from_pretrained(tmp_path)
    assert len(str(e.value)) < 1000
