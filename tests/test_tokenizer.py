"""llmcourse.tokenizer against Hugging Face ``tokenizers`` and against its own laws."""

import json
import random
import re
import sys
import unicodedata
from collections import Counter

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcourse import tokenizer as module
from llmcourse.data import english, our_text
from llmcourse.tokenizer import BYTES, CHARACTERS, END_OF_TEXT, Chain, Tokenizer, pretokenise

# Code points that Python's Unicode table knows: the reference's and ours, being newer, know
# them too. A letter that only one knew would be cut differently. Surrogates are no characters.
ASSIGNED = st.characters(exclude_categories=("Cn", "Cs"))
TEXTS = st.text(ASSIGNED, max_size=60) | st.text("ab", max_size=60) | st.text("a b1'st.\n")


def reference(text: str, vocab_size: int) -> tokenizers.Tokenizer:
    """Train the reference, Hugging Face ``tokenizers``, on the same text."""
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    peer.train_from_iterator([text], trainer)
    return peer


def assert_same(text: str, vocab_size: int, tmp_path) -> None:
    peer = reference(text, vocab_size)
    ours = Tokenizer.train(text, vocab_size)
    ours.save(tmp_path / "ours")
    (tmp_path / "theirs").mkdir(exist_ok=True)
    peer.model.save(str(tmp_path / "theirs"))
    for name in ("merges.txt", "vocab.json"):
        got = (tmp_path / "ours" / name).read_text(encoding="utf-8")
        expected = (tmp_path / "theirs" / name).read_text(encoding="utf-8")
        if name == "vocab.json":  # a JSON object has no order
            got, expected = json.loads(got), json.loads(expected)
        assert got == expected, name
    assert ours.encode(text) == peer.encode(text).ids
    assert ours.decode(ours.encode(text)) == text


def tie_text(seed: int) -> str:
    """Return a text in which most counts tie: all pairs of a small alphabet, shuffled."""
    rng = random.Random(seed)
    words = [a + b + c for a in "éaZ~\x01b" for b in "cd0'" for c in "ef"]
    rng.shuffle(words)
    return " ".join(words)


RANDOM = random.Random(0)
LONG_TEXTS = {
    "manual": lambda: english()[:150_000],
    "ours": our_text,
    "ties": lambda: tie_text(1),
    "ties, another order": lambda: tie_text(2),
    "random letters": lambda: "".join(RANDOM.choices("abc", k=2_000)),
    "random words": lambda: " ".join(
        "".join(RANDOM.choices("aeinst", k=RANDOM.randint(1, 9))) for _ in range(3_000)
    ),
    "one letter": lambda: "a" * 1_000,
    "spaces": lambda: "  a   b \n\n\n  c\t\t d" + " " * 50,
    "many scripts": lambda: "".join(
        chr(c) for c in range(0x3000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")
    ),
}


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_merges_and_ids_are_the_references(name, tmp_path):
    assert_same(LONG_TEXTS[name](), 700, tmp_path)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, num_merges=st.integers(0, 40))
def test_merges_and_ids_are_the_references_on_any_text(tmp_path_factory, text, num_merges):
    assert_same(text, 256 + num_merges, tmp_path_factory.mktemp("files"))


@settings(max_examples=150, deadline=None)
@given(text=st.text(ASSIGNED, max_size=60))
def test_ids_of_unseen_text_are_the_references(text):
    train = our_text()[:5_000]
    key = "unseen"
    if key not in TRAINED:
        TRAINED[key] = (Tokenizer.train(train, 600), reference(train, 600))
    ours, peer = TRAINED[key]
    assert ours.encode(text) == peer.encode(text).ids


TRAINED: dict[str, tuple] = {}


@pytest.mark.slow
def test_every_assigned_character_is_cut_as_the_reference_cuts_it():
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    for code in range(0x110000):
        character = chr(code)
        if unicodedata.category(character) in ("Cn", "Cs"):
            continue
        text = f"a{character}1{character}!{character} x"
        got = [len(word.encode()) for word in pretokenise(text)]
        assert got == [len(word) for word, _ in cut.pre_tokenize_str(text)], hex(code)


def test_the_bytes_stand_in_gpt2s_order():
    assert (BYTES[0], BYTES[187], BYTES[188], BYTES[255]) == (ord("!"), 255, 0, 0xAD)
    assert [*map(ord, CHARACTERS)] == sorted(map(ord, CHARACTERS))
    assert sorted(BYTES) == list(range(256))
    assert set(CHARACTERS) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert Tokenizer([]).encode(" A\n") == [220, 32, 198]  # as in GPT-2's published vocab.json


@given(data=st.binary(max_size=80))
def test_any_bytes_come_back(data):
    trained = small()
    assert trained.decode_bytes(trained.encode(data)) == data
    assert b"".join(pretokenise(data)) == data


@given(text=st.text(ASSIGNED, max_size=80))
def test_bytes_are_read_as_the_text_that_they_encode(text):
    trained = small()
    assert trained.encode(text.encode()) == trained.encode(text)
    assert [word.encode() for word in pretokenise(text)] == pretokenise(text.encode())
    assert trained.decode(trained.encode(text)) == text


def test_bytes_that_are_not_utf8_count_as_punctuation():
    assert pretokenise(b"ab\xff\xfe! 1\xc3 \xff") == [
        b"ab",
        b"\xff\xfe!",
        b" 1",
        b"\xc3",
        b" \xff",
    ]
    assert Tokenizer.train(b"\xff\xfe" * 3 + b"a", 257).merges == [(b"\xff", b"\xfe")]


def test_half_a_character_decodes_to_the_replacement_mark():
    plain = Tokenizer([])
    assert plain.decode(plain.encode("é")[:1]) == "\ufffd"


def small() -> Tokenizer:
    if "small" not in TRAINED:
        TRAINED["small"] = (Tokenizer.train(our_text()[:5_000], 400),)
    return TRAINED["small"][0]


# Cost: lines of the module that run, which no machine changes.


def lines_run(function) -> int:
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename not in (module.__file__, __file__):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def letters(size: int) -> str:
    return "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=size))


LONG_WORDS = {
    "one letter": lambda n: "a" * n,
    "spaces": lambda n: " " * n,
    "random letters": letters,
    "two letters in turn": lambda n: "ab" * (n // 2),
    "distinct words": lambda n: " ".join(re.findall(".{6}", letters(n)))[:n],
}


def growth(job, make) -> float:
    """Return how much the work grows when the text becomes four times as long."""
    short, long = make(2_000), make(8_000)
    return lines_run(lambda: job(long)) / lines_run(lambda: job(short))


@pytest.mark.parametrize("name", LONG_WORDS)
def test_work_grows_in_proportion_to_the_text(name):
    make = LONG_WORDS[name]
    rules = Tokenizer.train(make(500), 300).merges
    # Linear work grows 4-fold, n log n about 4.8-fold, quadratic work 16-fold.
    assert growth(lambda text: Tokenizer(rules).encode(text), make) < 5
    assert growth(lambda text: Tokenizer.train(text, 300), make) < 5


def test_the_counter_sees_quadratic_work():
    def rescan(text):
        while len(text) > 1:
            for _ in text:
                pass
            text = text[40:]

    assert growth(rescan, LONG_WORDS["one letter"]) > 12


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_WORDS)
def test_a_megabyte_in_one_word_is_encoded_and_learnt(name):
    text = LONG_WORDS[name](1_000_000)
    trained = Tokenizer.train(text, 270)
    assert len(trained.merges) == 14
    assert trained.decode(trained.encode(text)) == text
    assert not trained._cache, "a megabyte was kept in the cache of words"


def test_the_cache_of_words_changes_no_answer():
    trained = small()
    fresh = Tokenizer(trained.merges)
    text = our_text()[:3_000]
    first = fresh.encode(text)
    assert fresh._cache
    assert first == fresh.encode(text) == trained.encode(text)
    first.append(0)
    assert fresh.encode(text) == first[:-1]


# <|endoftext|>


def test_end_of_text_is_the_last_id_and_one_token():
    text = f"one day{END_OF_TEXT}one day{END_OF_TEXT}"
    trained = Tokenizer.train(text, 262, end_of_text=True)
    assert trained.vocab_size == 262
    assert trained.end_of_text == 261
    ids = trained.encode(text)
    assert [i for i, token in enumerate(ids) if token == 261] == [
        len(ids) // 2 - 1,
        len(ids) - 1,
    ]
    assert trained.decode(ids) == text
    assert 261 not in trained.encode(text, special=False)
    assert trained.decode(trained.encode(text, special=False)) == text


def test_end_of_text_is_characters_where_the_vocabulary_lacks_it():
    assert len(Tokenizer([]).encode(END_OF_TEXT)) == len(END_OF_TEXT)
    assert Tokenizer([]).end_of_text is None


def test_end_of_text_agrees_with_the_reference(tmp_path):
    Tokenizer.train(our_text()[:4_000], 400, end_of_text=True).save(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    files = [str(tmp_path / name) for name in ("vocab.json", "merges.txt")]
    peer = tokenizers.ByteLevelBPETokenizer(*files)
    peer.add_special_tokens([END_OF_TEXT])
    text = f"The lamp.{END_OF_TEXT}{END_OF_TEXT} The sea, {END_OF_TEXT}"
    assert ours.encode(text) == peer.encode(text).ids


# Files


def test_files_give_the_tokenizer_back(tmp_path):
    trained = Tokenizer.train(our_text()[:4_000], 400, end_of_text=True)
    trained.save(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    for read in (
        Tokenizer.from_files(folder),
        Tokenizer.from_files(folder / "vocab.json"),
        Tokenizer.from_files(str(folder / "vocab.json"), str(folder / "merges.txt")),
    ):
        assert (read.vocab, read.merges) == (trained.vocab, trained.merges)
    theirs = tokenizers.models.BPE.from_file(
        str(folder / "vocab.json"), str(folder / "merges.txt")
    )
    assert theirs.token_to_id(END_OF_TEXT) == 399


def test_files_as_others_write_them_are_read(tmp_path):
    Tokenizer.train("the the then hush # #", 262).save(tmp_path)
    expected = Tokenizer.from_files(tmp_path)
    merges = (tmp_path / "merges.txt").read_text(encoding="utf-8")
    lines = merges.split("\n")[1:]  # no header, and Windows line ends
    (tmp_path / "merges.txt").write_bytes("\r\n".join(lines).encode())
    ids = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    shuffled = {token: len(ids) - 1 - i for token, i in ids.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(shuffled))  # escaped, ids in another order
    read = Tokenizer.from_files(tmp_path)
    assert read.merges == expected.merges
    assert read.encode("then") == [len(ids) - 1 - i for i in expected.encode("then")]


def test_several_merges_may_make_one_token():
    merges = [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"a", b"bc")]
    both = Tokenizer(merges)
    assert both.vocab_size == 256 + 3
    assert both.encode("abc") == [258]


def edit(folder, name, change) -> None:
    path = folder / name
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


def drop(token):
    """Take a token out of vocab.json and close the gap in the ids."""

    def change(text):
        ids = json.loads(text)
        kept = sorted((t for t in ids if t != token), key=ids.__getitem__)
        return json.dumps({t: i for i, t in enumerate(kept)})

    return change


FAULTS = {
    "not JSON": ("vocab.json", lambda t: t[:-5], r"vocab\.json, line 1: not JSON"),
    "a list": ("vocab.json", lambda t: "[]", "got a JSON list, need an object"),
    "a hole in the ids": (
        "vocab.json",
        lambda t: t.replace(":0,", ":999,"),
        "must be 0 to 258",
    ),
    "an id in words": ("vocab.json", lambda t: t.replace(":0,", ':"0",'), "must be 0 to 258"),
    "a strange character": (
        "vocab.json",
        lambda t: t.replace('"th"', '"t—"'),
        r"vocab\.json: 't—' has '—', which stands for no byte",
    ),
    "a byte missing": ("vocab.json", drop("Ā"), "byte 0, 'Ā', has no id"),
    "a merge without an id": ("vocab.json", drop("th"), "makes a token that has no id"),
    "an id without a merge": (
        "vocab.json",
        lambda t: t.replace('"th"', '"qqq"'),
        r"merge 1, 't' \+ 'h', makes a token that has no id",
    ),
    "a token too many": (
        "vocab.json",
        lambda t: t[:-1] + ',"qqq":259}',
        "1 tokens that no merge makes, the first 'qqq'",
    ),
    "one part": ("merges.txt", lambda t: t.replace("t h\n", "th\n"), "line 2: got 'th'"),
    "three parts": ("merges.txt", lambda t: t.replace("t h", "t h e"), "line 2: got 't h e'"),
    "two spaces": ("merges.txt", lambda t: t.replace("t h", "t  h"), "line 2: got 't  h'"),
    "an empty line": ("merges.txt", lambda t: t.replace("t h", "\nt h"), "line 2: got ''"),
    "not a byte": ("merges.txt", lambda t: t.replace("t h", "t —"), "line 2: .*no byte"),
    "twice": ("merges.txt", lambda t: t + "t h\n", "merge 4, 't' . 'h', is there twice"),
    "order": (
        "merges.txt",
        lambda t: t.replace("t h\n", "") + "t h\n",
        "joins 'th', which no earlier merge makes",
    ),
    "a merge missing": (
        "merges.txt",
        lambda t: "\n".join(t.split("\n")[:-2]),
        "1 tokens that no merge makes",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_do_not_match_are_refused(fault, tmp_path):
    name, change, message = FAULTS[fault]
    Tokenizer([(b"t", b"h"), (b"th", b"e"), (b"h", b"u")]).save(tmp_path)
    Tokenizer.from_files(tmp_path)
    edit(tmp_path, name, change)
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_files(tmp_path)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_missing_or_undecodable_file_is_named(name, tmp_path):
    Tokenizer.train("the the", 257).save(tmp_path)
    (tmp_path / name).write_bytes(b"{\xff")
    with pytest.raises(ValueError, match=rf"{name}: byte 1 is not valid UTF-8"):
        Tokenizer.from_files(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{name} is not there"):
        Tokenizer.from_files(tmp_path)


# Arguments


@pytest.mark.parametrize("vocab_size", [0, -1, 255])
def test_a_vocabulary_smaller_than_the_bytes_is_refused(vocab_size):
    with pytest.raises(ValueError, match=f"vocab_size: got {vocab_size}, need at least 256"):
        Tokenizer.train("text", vocab_size)
    with pytest.raises(ValueError, match="need at least 257"):
        Tokenizer.train("text", 256, end_of_text=True)


def test_training_stops_when_no_pair_is_left():
    assert Tokenizer.train("ab", 1_000).merges == [(b"a", b"b")]
    assert Tokenizer.train("", 1_000).vocab_size == 256


@pytest.mark.parametrize("identity", [-1, 256])
def test_an_id_out_of_range_is_refused(identity):
    with pytest.raises(ValueError, match=f"ids: got {identity}, need 0 to 255"):
        Tokenizer([]).decode([0, identity])


@pytest.mark.parametrize("ids", [3, None, "12", [1.5], [[1, 2]]])
def test_what_is_no_row_of_ids_is_refused(ids):
    with pytest.raises(TypeError, match=r"ids: got .*, need one row of integers"):
        Tokenizer([]).decode(ids)


def test_text_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="text: got int, need str or bytes"):
        Tokenizer([]).encode(5)
    with pytest.raises(ValueError, match=r"character 2 is a lone surrogate, '\\ud800'"):
        Tokenizer([]).encode("ab\ud800")


def test_nothing_encodes_to_nothing():
    assert small().encode("") == small().encode(b"") == pretokenise("") == []
    assert small().decode([]) == ""


def test_progress_goes_to_stdout(capfd):
    Tokenizer.train("the the", 258, progress=True)
    out, err = capfd.readouterr()
    assert "merges" in out
    assert not err


def test_a_chain_joins_from_the_left_and_reports_what_changed():
    chain = Chain([[1, 1, 1], [2, 1, 1]])
    changes = Counter((gone, come) for _, gone, come in chain.join((1, 1), 3))
    assert list(chain.words()) == [[3, 1], [2, 3]]
    assert changes == {((1, 1), (3, 1)): 1, ((2, 1), (2, 3)): 1}
