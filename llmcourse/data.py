"""Texts and recall tasks that need no download.

Two texts: :func:`english`, half a megabyte of real prose that every CPython has (and that
differs between its versions), and :func:`our_text`, a short one of ours that never changes.
Two probes of memory with every knob in the open: :func:`diary` and :func:`mqar`. And what a
training loop eats: :func:`split` and :func:`batches` of a text, :func:`mqar_batches` and
:func:`diary_batches` of the probes.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

NOT_ASKED = -100  # the target that torch's cross_entropy leaves out

NAMES = str.split("""
    Ada Amir Ana Ben Boris Carla Chen Clara Dario David Dina Elena Emil Erik Fatima Felix
    Finn Freya Gita Greta Hana Hassan Hugo Ida Igor Ines Ivan Jana Jonas Judit Kai Karim
    Kofi Lars Leila Leo Lina Luca Maja Malik Marta Mei Mia Miro Nadia Nils Nina Noor Olga
    Omar Otto Paula Petra Rafa Rosa Sami Sara Sven Tara Theo Uma Vera Yuki Zoe
""")

CITIES = str.split("""
    Accra Adelaide Algiers Amman Ankara Antwerp Athens Baku Bamako Bangkok Basel Beirut
    Belgrade Bergen Berlin Bern Bilbao Bogota Boston Bremen Brno Brussels Budapest Cairo
    Caracas Chicago Colombo Cordoba Cork Dakar Damascus Delhi Denver Dresden Dublin Durban
    Essen Florence Geneva Genoa Ghent Glasgow Graz Hamburg Hanoi Harare Havana Helsinki
    Istanbul Jakarta Kampala Karachi Kyiv Lagos Lausanne Leeds Leipzig Lima Lisbon London
    Lusaka Lyon Madrid Malmo Manila Milan Montreal Mumbai Munich Nairobi Naples Nice Odessa
    Osaka Oslo Ottawa Paris Perth Porto Prague Quito Rabat Riga Rome Seoul Seville Sofia
    Tallinn Tbilisi Tokyo Toronto Tunis Turin Utrecht Vienna Warsaw Zurich
""")

FILLER = """
The rain stopped before noon.
Somebody had left a window open.
The kettle took a long time to boil.
A cat slept on the warm stone step.
The last train was late again.
There was fresh bread on the table.
The old clock struck eleven.
Two boats came in with the tide.
The post arrived, and it was all bills.
A neighbour practised the same tune twice.
The lamp in the hall flickered and held.
Snow was promised but did not come.
The market smelled of oranges.
A bicycle leaned against the gate.
The soup needed more salt.
Nobody answered the telephone.
The swallows had gone by the morning.
A letter fell behind the cupboard.
The paint on the door was still wet.
Children were flying a red kite.
The radio played until the battery died.
It was a good year for plums.
The stairs creaked as they always do.
Fog lay over the fields until ten.
The tailor closed early that day.
A dog barked at its own echo.
The tea went cold beside the book.
The ferry blew its horn three times.
A button was missing from the coat.
The moon rose behind the chimneys.
The ink had dried in the bottle.
Someone was sweeping the yard.
""".strip().splitlines()


# The vocabulary of the diary, a word or a mark an id; id 0 fills what a shorter row leaves.
_GRAMMAR = str.split("lives in moved to Where does live . ?")
_FILLER_WORDS = re.findall(r"\w+|[.,]", " ".join(FILLER))
DIARY_WORDS = ("", *sorted({*NAMES, *CITIES, *_GRAMMAR, *_FILLER_WORDS}))
_DIARY_IDS = {word: number for number, word in enumerate(DIARY_WORDS)}


def fingerprint(text: str | bytes) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a text (as UTF-8)."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:12]


def english() -> str:
    """Return about half a megabyte of English: Python's reference manual, as CPython ships it.

    It differs between versions of Python: record its :func:`fingerprint` beside a result, and
    use :func:`our_text` for what is compared.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def our_text() -> str:
    """Return a story of about 22 kB in plain English, written for this course and fixed."""
    folder = resources.files("llmcourse") / "texts"
    files = sorted(
        (f for f in folder.iterdir() if f.name.endswith(".txt")), key=lambda f: f.name
    )
    return "\n\n".join(file.read_text(encoding="utf-8").strip() for file in files) + "\n"


def read_text(path: str | Path) -> str:
    """Return the text of any UTF-8 file, a byte order mark left out, line ends as ``\\n``.

    Raises OSError if it cannot be read, ValueError if it is empty or not UTF-8.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start}, 0x{error.object[error.start]:02x}, is not valid "
            "UTF-8; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise type(error)(error.errno, f"cannot be read: {error.strerror}", str(path)) from None
    if not text.strip():
        raise ValueError(f"{path}: the file is empty")
    return text


@dataclass(frozen=True)
class Diary:
    """A text that states facts, changes some, goes on about other things, and is then asked.

    Entry i of every tuple below belongs to question i: one question a fact, in random order.
    """

    text: str
    questions: tuple[str, ...]  # "Where does Mia live?"
    answers: tuple[str, ...]  # "Lima": where the text says last that she lives
    former: tuple[tuple[str, ...], ...]  # where she lived before, oldest first
    distances: tuple[int, ...]  # sentences after the one that holds the answer

    @property
    def transcript(self) -> str:
        """The text and then every question with its answer: ``Where does Mia live? Lima.``"""
        asked = zip(self.questions, self.answers, strict=True)
        return " ".join([self.text, *(f"{question} {answer}." for question, answer in asked)])


def diary(num_facts: int, num_updates: int, distance: int, *, seed: int) -> Diary:
    """Write a diary whose answers are right by construction.

    First num_facts sentences, one for each of that many people: ``Mia lives in Oslo.`` Then
    num_updates sentences, each about one of these people, drawn at random: ``Mia moved to
    Lima.`` Then distance sentences about other things. Nobody moves to a city where somebody
    lives at that moment, so a city names at most one person. The same arguments give the same
    diary. Raises ValueError for num_facts outside 1 to 64, or a negative num_updates or
    distance.
    """
    _need("num_facts", num_facts, 1, len(NAMES))
    _need("num_updates", num_updates, 0)
    _need("distance", distance, 0)
    rng = random.Random(seed)
    people = rng.sample(NAMES, num_facts)
    homes = rng.sample(CITIES, num_facts)
    lived = {name: [city] for name, city in zip(people, homes, strict=True)}
    said = {name: number for number, name in enumerate(people)}
    sentences = [f"{name} lives in {lived[name][-1]}." for name in people]
    for _ in range(num_updates):
        name = rng.choice(people)
        taken = {cities[-1] for cities in lived.values()}
        lived[name].append(rng.choice([city for city in CITIES if city not in taken]))
        said[name] = len(sentences)
        sentences.append(f"{name} moved to {lived[name][-1]}.")
    sentences += rng.choices(FILLER, k=distance)
    rng.shuffle(people)
    return Diary(
        text=" ".join(sentences),
        questions=tuple(f"Where does {name} live?" for name in people),
        answers=tuple(lived[name][-1] for name in people),
        former=tuple(tuple(lived[name][:-1]) for name in people),
        distances=tuple(len(sentences) - 1 - said[name] for name in people),
    )


def mqar(
    num_pairs: int, length: int, vocab_size: int, *, batch: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return (inputs, targets) of multi-query associative recall (Arora et al. 2023).

    Both are int64 [batch, length]. A row begins with num_pairs pairs, key then value; then
    each key comes once more, at a random place and in random order, with blanks (id 0) around
    it. The target is the key's value where a key is asked, and -100 everywhere else. Of the
    ids, 1 to (vocab_size - 1) // 2 are keys and the rest are values; in a row no key or value
    belongs to two pairs. The original draws its places closer to the pairs; here all are
    alike. Raises ValueError if the row or the vocabulary is too short for num_pairs.
    """
    _need("num_pairs", num_pairs, 1)
    _need("batch", batch, 1)
    _need("length", length, 3 * num_pairs)
    _need("vocab_size", vocab_size, 2 * num_pairs + 1)
    rng = torch.Generator().manual_seed(seed)
    num_keys = (vocab_size - 1) // 2
    keys = 1 + _choose(num_keys, num_pairs, batch, rng)
    values = 1 + num_keys + _choose(vocab_size - 1 - num_keys, num_pairs, batch, rng)
    places = 2 * num_pairs + _choose(length - 2 * num_pairs, num_pairs, batch, rng)
    inputs = torch.zeros(batch, length, dtype=torch.int64)
    targets = torch.full((batch, length), NOT_ASKED)
    inputs[:, : 2 * num_pairs] = torch.stack([keys, values], dim=-1).flatten(1)
    inputs.scatter_(1, places, keys)
    targets.scatter_(1, places, values)
    return inputs, targets


def diary_ids(text: str) -> list[int]:
    """Return the ids of a diary's words and marks: places in DIARY_WORDS.

    Raises ValueError for a word that no diary holds.
    """
    try:
        return [_DIARY_IDS[word] for word in re.findall(r"\w+|[^\w\s]", text)]
    except KeyError as error:
        raise ValueError(f"text: got {error}, need words of the diary") from None


def diary_rows(diaries: Sequence[Diary]) -> tuple[Tensor, Tensor]:
    """Return (inputs, targets), int64 [batch, T]: each diary's transcript, asked at its end.

    The target is the answer where a question ends, at its mark, and -100 everywhere else; the
    answer itself is the next input, as when a text is read on. Shorter rows end in id 0.
    """
    rows = [diary_ids(entry.transcript) for entry in diaries]
    inputs = torch.zeros(len(rows), max(map(len, rows)) - 2, dtype=torch.int64)
    targets = torch.full_like(inputs, NOT_ASKED)
    for n, row in enumerate(rows):
        tokens = torch.tensor(row)
        asked = (tokens[:-2] == _DIARY_IDS["?"]).nonzero().squeeze(1)
        inputs[n, : len(row) - 2] = tokens[
            :-2
        ]  # the last answer and its full stop are not read
        targets[n, asked] = tokens[asked + 1]
    return inputs, targets


@dataclass
class TaskBatches(Iterator[tuple[Tensor, Tensor]]):
    """An endless stream of batches of a task; ``state`` is the number of the next one.

    ``make(batch_size, rng, **knobs)`` writes one. A knob with several values takes one of them
    in each batch, at random. Batch number n depends on the task, its knobs, seed and n alone.
    """

    task: str
    knobs: dict[str, int | Sequence[int]]
    batch_size: int
    seed: int
    make: Callable[..., tuple[Tensor, Tensor]] = field(repr=False)
    state: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        _need("batch_size", self.batch_size, 1)
        _need("seed", self.seed, 0)
        _need("state", self.state, 0)
        for name, value in self.knobs.items():
            values = [value] if isinstance(value, int | str) else list(value)
            if not values:
                raise ValueError(f"{name}: got 0 values, need at least one")
            for one in values:
                _need(name, one, 0)

    def __next__(self) -> tuple[Tensor, Tensor]:
        rng = random.Random(f"{self.seed} {self.state}")
        self.state += 1
        knobs = {n: v if isinstance(v, int) else rng.choice(v) for n, v in self.knobs.items()}
        return self.make(self.batch_size, rng, **knobs)


def mqar_batches(
    num_pairs: int | Sequence[int],
    length: int,
    vocab_size: int,
    *,
    batch_size: int,
    seed: int,
    state: int = 0,
) -> TaskBatches:
    """Return an endless iterator of (inputs, targets) of :func:`mqar`.

    num_pairs may be several numbers: each batch takes one of them at random. Batch number n
    depends on the arguments and n alone. Raises ValueError for knobs that mqar refuses.
    """

    def make(batch: int, rng: random.Random, **knobs: int) -> tuple[Tensor, Tensor]:
        return mqar(**knobs, batch=batch, seed=rng.getrandbits(63))

    knobs = {"num_pairs": num_pairs, "length": length, "vocab_size": vocab_size}
    return TaskBatches("mqar", knobs, batch_size, seed, make, state)


def diary_batches(
    num_facts: int | Sequence[int],
    num_updates: int | Sequence[int],
    distance: int | Sequence[int],
    *,
    batch_size: int,
    seed: int,
    state: int = 0,
) -> TaskBatches:
    """Return an endless iterator of :func:`diary_rows` of :func:`diary`.

    Each knob may be several numbers: each batch takes one of them at random. Batch number n
    depends on the arguments and n alone. Raises ValueError for knobs that diary refuses.
    """

    def make(batch: int, rng: random.Random, **knobs: int) -> tuple[Tensor, Tensor]:
        return diary_rows([diary(**knobs, seed=rng.getrandbits(63)) for _ in range(batch)])

    knobs = {"num_facts": num_facts, "num_updates": num_updates, "distance": distance}
    return TaskBatches("diary", knobs, batch_size, seed, make, state)


def _choose(total: int, count: int, batch: int, rng: torch.Generator) -> Tensor:
    """Return [batch, count]: rows of different numbers from 0 to total - 1, in random order."""
    return torch.rand(batch, total, generator=rng, dtype=torch.float64).argsort(1)[:, :count]


def split(ids: Sequence[int] | Tensor, validation: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return (training, validation) ids, int64 [n]: the last ``validation`` part is held back.

    Raises ValueError for a part outside (0, 1), or if either side would be empty.
    """
    tokens = token_row(ids)
    if not 0 < validation < 1:
        raise ValueError(f"validation: got {validation}, need more than 0 and less than 1")
    cut = len(tokens) - round(len(tokens) * validation)
    if not 0 < cut < len(tokens):
        raise ValueError(f"ids: {len(tokens)} ids cannot be split at {validation}")
    return tokens[:cut], tokens[cut:]


class Batches(Iterator[tuple[Tensor, Tensor]]):
    """An endless stream of batches; ``state`` is the number of the next one, and can be set."""

    def __init__(
        self, ids: Tensor, batch_size: int, context: int, seed: int, state: int
    ) -> None:
        self.ids, self.batch_size, self.context, self.seed = ids, batch_size, context, seed
        self.state = state

    def __next__(self) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng([self.seed, self.state])
        self.state += 1
        starts = torch.from_numpy(
            rng.integers(len(self.ids) - self.context, size=self.batch_size)
        )
        window = self.ids[starts[:, None] + torch.arange(self.context + 1)]
        return window[:, :-1], window[:, 1:]


def batches(
    ids: Sequence[int] | Tensor, *, batch_size: int, context: int, seed: int, state: int = 0
) -> Batches:
    """Return an endless iterator of (x, y), int64 [batch_size, context]; y is x shifted by one.

    Every row starts at a random place. Batch number n depends on seed and n alone, so a run
    resumes where it stopped by setting ``state`` to the number of the next batch. Raises
    ValueError if ids has no context + 1 tokens, or for a number that is too small.
    """
    _need("batch_size", batch_size, 1)
    _need("context", context, 1)
    _need("seed", seed, 0)
    _need("state", state, 0)
    tokens = token_row(ids)
    if len(tokens) <= context:
        raise ValueError(f"ids: got {len(tokens)}, need at least context + 1 = {context + 1}")
    return Batches(tokens, batch_size, context, seed, state)


def token_row(ids: Sequence[int] | Tensor) -> Tensor:
    """Return ids as one row, int64 [n]. Raises ValueError for anything but whole numbers."""
    try:
        empty = torch.zeros(0, dtype=torch.int64)
        tokens = torch.as_tensor(ids) if len(ids) else empty
    except (TypeError, ValueError):
        raise ValueError(f"ids: got {type(ids).__name__}, need one row of integers") from None
    if tokens.ndim != 1 or tokens.is_floating_point() or tokens.is_complex():
        raise ValueError(
            f"ids: got {tokens.dtype} of shape {tuple(tokens.shape)}, need one row of integers"
        )
    return tokens.to(torch.int64)


def _need(name: str, value: int, least: int, most: int | None = None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        kind = "" if type(value) is int else "a whole number, "
        raise ValueError(f"{name}: got {value!r}, need {kind}{limit}")
