"""llmcourse.data: texts, the two probes, and batches."""

import hashlib
import re
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from llmcourse.data import (
    CITIES,
    DIARY_WORDS,
    FILLER,
    NAMES,
    batches,
    diary,
    diary_batches,
    diary_ids,
    diary_rows,
    english,
    fingerprint,
    mqar,
    mqar_batches,
    our_text,
    read_text,
    split,
)

# Texts


def test_english_is_half_a_megabyte_of_prose():
    text = english()
    assert 300_000 < len(text) < 1_000_000
    assert Counter(text.lower().split()).most_common(1)[0][0] == "the"
    assert text == english()


def test_our_text_is_the_text_that_stored_outputs_were_made_with():
    text = our_text()
    assert text.isascii()
    assert "\r" not in text
    assert 20_000 < len(text) < 30_000
    assert text.startswith("The Lamp at Harrow Point")


def test_a_fingerprint_is_the_sha256_of_the_bytes():
    assert fingerprint("é") == fingerprint("é".encode())
    assert fingerprint("abc") == hashlib.sha256(b"abc").hexdigest()[:12]
    assert fingerprint("abc") != fingerprint("abd")


def test_any_text_file_is_read(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes("\ufeffdéjà\r\nvu\n".encode())
    assert read_text(file) == read_text(str(file)) == "déjà\nvu\n"


def test_a_file_that_is_not_text_is_refused(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"text\.txt: byte 3, 0xe9, is not valid UTF-8"):
        read_text(file)
    for empty in (b"", b" \n\n"):
        file.write_bytes(empty)
        with pytest.raises(ValueError, match=r"text\.txt: the file is empty"):
            read_text(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot be read: No such file .*gone"):
        read_text(tmp_path / "gone")
    with pytest.raises(IsADirectoryError, match="cannot be read: Is a directory"):
        read_text(tmp_path)


# The diary


def read(text: str) -> tuple[dict[str, list[str]], dict[str, int], list[str]]:
    """Read a diary as a person would: cities by name, last mention by name, other sentences."""
    cities: dict[str, list[str]] = {}
    said: dict[str, int] = {}
    other = []
    for number, sentence in enumerate(text.removesuffix(".").split(". ")):
        if fact := re.fullmatch(r"(\w+) (lives in|moved to) (\w+)", sentence):
            name, verb, city = fact.groups()
            assert (verb == "lives in") == (name not in cities)
            assert all(past[-1] != city for past in cities.values()), "the city was taken"
            cities.setdefault(name, []).append(city)
            said[name] = number
        else:
            other.append(sentence + ".")
    return cities, said, other


@pytest.mark.parametrize(
    "facts, updates, distance", [(1, 0, 0), (5, 7, 3), (64, 200, 0), (2, 0, 9)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_answers_are_what_the_text_says_last(facts, updates, distance, seed):
    entry = diary(facts, updates, distance, seed=seed)
    cities, said, _ = read(entry.text)
    asked = [
        re.fullmatch(r"Where does (\w+) live\?", question).group(1)
        for question in entry.questions
    ]
    assert sorted(asked) == sorted(cities)
    assert entry.answers == tuple(cities[name][-1] for name in asked)
    assert entry.former == tuple(tuple(cities[name][:-1]) for name in asked)
    last = len(entry.text.removesuffix(".").split(". ")) - 1
    assert entry.distances == tuple(last - said[name] for name in asked)


def test_the_knobs_of_the_diary_are_exact():
    entry = diary(5, 7, 3, seed=0)
    cities, _, other = read(entry.text)
    assert len(cities) == len(entry.questions) == 5
    assert sum(map(len, entry.former)) == 7
    assert len(other) == min(entry.distances) == 3
    assert set(other) <= set(FILLER)
    assert entry.text.count(".") == 5 + 7 + 3


def test_the_transcript_holds_every_question_with_its_answer():
    entry = diary(2, 1, 1, seed=3)
    end = "".join(f" {q} {a}." for q, a in zip(entry.questions, entry.answers, strict=True))
    assert entry.transcript == entry.text + end


def test_the_seed_decides_the_diary():
    assert diary(5, 5, 5, seed=1) == diary(5, 5, 5, seed=1)
    assert diary(5, 5, 5, seed=1) != diary(5, 5, 5, seed=2)


def test_no_word_of_the_diary_can_be_mistaken_for_another():
    assert len(set(NAMES)) == len(NAMES)
    assert len(set(CITIES)) == len(CITIES) > len(NAMES)
    assert not set(NAMES) & set(CITIES)
    filler = set(re.findall(r"\w+", " ".join(FILLER)))
    assert not filler & {*NAMES, *CITIES, "lives", "moved"}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 0, 0), "num_facts: got 0, need 1 to 64"),
        ((65, 0, 0), "num_facts: got 65, need 1 to 64"),
        ((1, -1, 0), "num_updates: got -1, need at least 0"),
        ((1, 0, -1), "distance: got -1, need at least 0"),
        ((2.5, 0, 0), "num_facts: got 2.5, need a whole number, 1 to 64"),
    ],
)
def test_a_diary_that_cannot_be_written_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        diary(*arguments, seed=0)


# MQAR


@pytest.mark.parametrize(
    "pairs, length, vocab", [(1, 3, 3), (4, 12, 9), (4, 40, 64), (7, 64, 100)]
)
def test_the_targets_are_what_the_pairs_say(pairs, length, vocab):
    inputs, targets = mqar(pairs, length, vocab, batch=50, seed=0)
    assert inputs.shape == targets.shape == (50, length)
    assert inputs.dtype == targets.dtype == torch.int64
    for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
        memory = dict(zip(row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        assert len(memory) == len(set(memory.values())) == pairs
        asked = [token for token in row[2 * pairs :] if token != 0]
        assert sorted(asked) == sorted(memory)
        expected = [-100] * 2 * pairs + [memory.get(token, -100) for token in row[2 * pairs :]]
        assert target == expected


def test_keys_and_values_use_the_whole_vocabulary_and_share_nothing():
    inputs, targets = mqar(2, 10, 8, batch=400, seed=0)
    assert set(inputs[:, 0:4:2].flatten().tolist()) == {1, 2, 3}
    assert set(inputs[:, 1:4:2].flatten().tolist()) == {4, 5, 6, 7}
    asked = (targets != -100).float().mean(0)
    assert (asked[:4] == 0).all()
    # A place is asked with probability 1/3; 400 rows: standard deviation 0.024, five of them.
    assert (asked[4:] - 1 / 3).abs().max() < 0.12


def test_the_seed_decides_the_pairs():
    one, same, other = (mqar(4, 20, 50, batch=2, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_pairs": 0}, "num_pairs: got 0, need at least 1"),
        ({"length": 11}, "length: got 11, need at least 12"),
        ({"vocab_size": 8}, "vocab_size: got 8, need at least 9"),
        ({"batch": 0}, "batch: got 0, need at least 1"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(change, message):
    arguments = {"num_pairs": 4, "length": 12, "vocab_size": 9, "batch": 1, "seed": 0} | change
    with pytest.raises(ValueError, match=message):
        mqar(**arguments)


# Splitting and batches


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_the_end_of_the_text_is_held_back(make):
    train, validation = split(make([*range(20)]), 0.25)
    assert train.tolist() == [*range(15)]
    assert validation.tolist() == [*range(15, 20)]
    assert train.dtype == validation.dtype == torch.int64


@pytest.mark.parametrize("part", [0, 1, -0.1, 1.5])
def test_a_part_that_is_none_or_all_is_refused(part):
    with pytest.raises(ValueError, match=f"validation: got {part}"):
        split([1, 2, 3], part)


@pytest.mark.parametrize("ids", [[], [1], [1, 2]])
def test_a_side_may_not_be_empty(ids):
    with pytest.raises(ValueError, match=f"{len(ids)} ids cannot be split at 0.1"):
        split(ids)


def test_the_targets_are_the_inputs_one_token_later():
    stream = batches([*range(100)], batch_size=8, context=5, seed=0)
    seen = set()
    for x, y in islice(stream, 200):
        assert x.shape == y.shape == (8, 5)
        assert x.dtype == y.dtype == torch.int64
        assert torch.equal(y, x + 1)
        assert torch.equal(x, x[:, :1] + torch.arange(5))
        seen |= set(x[:, 0].tolist())
    assert seen == set(range(95)), "every start that has room, and no other"


def test_batch_n_depends_on_the_seed_and_n_alone():
    def make(seed, state=0):
        return batches([*range(50)], batch_size=4, context=3, seed=seed, state=state)

    whole = [x for x, _ in islice(make(7), 6)]
    assert all(not torch.equal(a, b) for a, b in pairwise(whole))
    late = make(7, state=3)
    assert [x.tolist() for x, _ in islice(late, 3)] == [x.tolist() for x in whole[3:]]
    assert late.state == 6
    late.state = 1
    assert torch.equal(next(late)[0], whole[1])
    assert not torch.equal(next(make(8))[0], whole[0])


def test_batches_leave_the_global_randomness_alone():
    torch.manual_seed(0)
    before = torch.rand(3)
    torch.manual_seed(0)
    next(batches([*range(9)], batch_size=2, context=2, seed=5))
    mqar(1, 3, 3, batch=1, seed=5)
    assert torch.equal(before, torch.rand(3))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ids": [1, 2, 3]}, r"ids: got 3, need at least context \+ 1 = 4"),
        (
            {"ids": [1.0] * 9},
            r"ids: got torch.float32 of shape \(9,\), need one row of integers",
        ),
        ({"ids": [[1, 2]] * 9}, r"ids: got torch.int64 of shape \(9, 2\)"),
        ({"batch_size": 0}, "batch_size: got 0, need at least 1"),
        ({"context": 0}, "context: got 0, need at least 1"),
        ({"seed": -1}, "seed: got -1, need at least 0"),
        ({"state": -1}, "state: got -1, need at least 0"),
    ],
)
def test_batches_that_cannot_be_cut_are_refused(change, message):
    arguments = {"ids": [*range(9)], "batch_size": 2, "context": 3, "seed": 0} | change
    with pytest.raises(ValueError, match=message):
        batches(**arguments)


# Batches of the probes


def streams(seed=0, state=0, batch_size=4):
    size = {"batch_size": batch_size, "seed": seed, "state": state}
    return [mqar_batches([2, 3], 12, 20, **size), diary_batches([1, 3], (0, 4), 1, **size)]


@pytest.mark.parametrize("kind", [0, 1], ids=["mqar", "diary"])
def test_batch_n_of_a_probe_depends_on_the_seed_and_n_alone(kind):
    whole = [x for x, _ in islice(streams(7)[kind], 6)]
    late = streams(7, state=3)[kind]
    assert [x.tolist() for x, _ in islice(late, 3)] == [x.tolist() for x in whole[3:]]
    assert late.state == 6
    late.state = 1
    assert torch.equal(next(late)[0], whole[1])
    assert next(streams(8)[kind])[0].tolist() != whole[0].tolist()
    assert len({str(x.tolist()) for x in whole}) == 6


def test_a_batch_of_mqar_is_mqar_with_one_of_the_numbers_of_pairs():
    stream, seen = streams(batch_size=5)[0], set()
    for inputs, targets in islice(stream, 30):
        assert inputs.shape == targets.shape == (5, 12)
        asked = (targets != -100).sum(1)
        assert (asked == asked[0]).all()
        seen.add(int(asked[0]))
        pairs = int(asked[0])
        for row, target in zip(inputs.tolist(), targets.tolist(), strict=True):
            memory = dict(zip(row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
            for token, answer in zip(row[2 * pairs :], target[2 * pairs :], strict=True):
                assert answer == memory.get(token, -100)
    assert seen == {2, 3}


def test_the_rows_of_a_diary_are_its_words_and_its_answers_are_the_targets():
    entries = [diary(3, 2, 2, seed=seed) for seed in range(20)]
    inputs, targets = diary_rows(entries)
    for entry, row, target in zip(entries, inputs.tolist(), targets.tolist(), strict=True):
        read = " ".join(DIARY_WORDS[i] for i in row if i).replace(" .", ".").replace(" ?", "?")
        assert entry.transcript.startswith(read.replace(" ,", ","))
        asked = [n for n, answer in enumerate(target) if answer != -100]
        assert [DIARY_WORDS[target[n]] for n in asked] == list(entry.answers)
        for n, question in zip(asked, entry.questions, strict=True):
            assert " ".join(DIARY_WORDS[i] for i in row[n - 4 : n + 1]) == question[:-1] + " ?"
        ends = [n for n, token in enumerate(row) if token]
        assert ends[-1] == asked[-1], "the last answer is not shown"


def test_every_word_of_a_diary_has_one_id():
    assert len(set(DIARY_WORDS)) == len(DIARY_WORDS) and DIARY_WORDS[0] == ""
    text = "Mia moved to Lima. Where does Mia live?"
    words = [DIARY_WORDS[i] for i in diary_ids(text)]
    assert words == ["Mia", "moved", "to", "Lima", ".", "Where", "does", "Mia", "live", "?"]
    assert 0 not in diary_ids(diary(64, 50, 300, seed=0).transcript)
    for word in ("Mordor", "Mia!"):
        with pytest.raises(
            ValueError, match=r"text: got '(Mordor|!)', need words of the diary"
        ):
            diary_ids(f"{word} lives in Lima.")


def test_a_stream_says_what_it_is_and_nothing_of_where_it_stands():
    one, same, other = streams()[0], streams(state=5)[0], streams(seed=1)[0]
    next(one)
    assert repr(one) == repr(same) != repr(other)
    assert "'num_pairs': [2, 3]" in repr(one)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: mqar_batches(2, 12, 20, batch_size=0, seed=0), "batch_size: got 0"),
        (lambda: mqar_batches(2, 12, 20, batch_size=1, seed=-1), "seed: got -1"),
        (lambda: mqar_batches([2, 2.5], 12, 20, batch_size=1, seed=0), "num_pairs: got 2.5"),
        (lambda: mqar_batches([], 12, 20, batch_size=1, seed=0), "num_pairs: got 0 values"),
        (lambda: next(mqar_batches(5, 12, 20, batch_size=1, seed=0)), "length: got 12"),
        (lambda: diary_batches(1, 0, -1, batch_size=1, seed=0), "distance: got -1"),
        (lambda: next(diary_batches(99, 0, 0, batch_size=1, seed=0)), "num_facts: got 99"),
        (lambda: diary_batches("3", 0, 0, batch_size=1, seed=0), "num_facts: got '3'"),
    ],
)
def test_batches_of_a_probe_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
