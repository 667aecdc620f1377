"""Byte-level BPE, GPT-2's tokenizer: train, encode, decode, and its two files.

A text is cut into words (:func:`pretokenise`), a word is a row of bytes, and byte-pair encoding
(BPE) joins neighbours until no known pair is left. Training and encoding are the same act on
the same structure, a :class:`Chain`: training joins the most frequent pair and notes it down,
encoding joins the pair that was noted down first. Each costs about n log n for n bytes, however
long a word is.

Merges and ids are those of Hugging Face ``tokenizers`` (``BpeTrainer`` over
``ByteLevel.alphabet()``): of pairs with the same count, the one with the smaller ids wins.
"""

import heapq
import json
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import AnyStr

import regex

from llmcourse.progress import bar

Pair = tuple[int, int]

END_OF_TEXT = "<|endoftext|>"
END = -1  # between two words, and where a symbol has been joined to the one on its left
CACHED_BYTES = 1 << 18  # how much text, as distinct words, a tokenizer remembers the ids of

# GPT-2's cut: contractions, letters, numbers, everything else, each with at most one space in
# front; of a run of spaces, the last one goes to the word that follows.
WORD = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


def _byte_order() -> list[int]:
    """Return the 256 bytes in the order of their ids: first those that print, then the rest."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return printable + [byte for byte in range(256) if byte not in printable]


BYTES = _byte_order()
# In GPT-2's files each byte is one visible character: itself if it prints, else from 256 on.
CHARACTERS = [chr(byte if i < 188 else 256 + i - 188) for i, byte in enumerate(BYTES)]
BYTE_TO_CHARACTER = dict(zip(BYTES, CHARACTERS, strict=True))
CHARACTER_TO_BYTE = dict(zip(CHARACTERS, BYTES, strict=True))


def pretokenise(text: AnyStr) -> list[AnyStr]:
    """Cut a text into GPT-2's words; joined, they are the text again.

    Bytes are cut as the text they encode. A byte that is not part of valid UTF-8 counts as
    punctuation: neither a letter, nor a number, nor a space.
    """
    words = WORD.findall(_as_text(text))
    return words if isinstance(text, str) else [_as_bytes(word) for word in words]


def _as_text(text: str | bytes) -> str:
    """Return text in which a byte that is not valid UTF-8 stands as a lone surrogate."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "surrogateescape")
    if not isinstance(text, str):
        raise TypeError(f"text: got {type(text).__name__}, need str or bytes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text: character {error.start} is a lone surrogate, {text[error.start]!a}, which "
            "UTF-8 cannot write; give bytes instead"
        ) from None
    return text


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Chain:
    """Words laid out in one row of symbols, in which neighbours can be joined.

    A doubly linked list in three Python lists. ``symbols[i]`` is an id, or END between words;
    ``left[i]`` and ``right[i]`` are the places of its neighbours. ``places[pair]`` lists where
    a pair was once seen: a place that has changed since is noticed, and skipped, when read.
    """

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self.symbols = [END]
        for word in words:
            self.symbols.extend(word)
            self.symbols.append(END)
        size = len(self.symbols)
        self.left = list(range(-1, size - 1))
        self.right = list(range(1, size + 1))
        self.places: defaultdict[Pair, list[int]] = defaultdict(list)
        for i in range(size - 1):
            if self.symbols[i] != END and self.symbols[i + 1] != END:
                self.places[self.symbols[i], self.symbols[i + 1]].append(i)

    def join(self, pair: Pair, new: int) -> Iterator[tuple[int, Pair, Pair]]:
        """Put ``new`` wherever ``pair`` stands, left to right.

        Yields (place, pair that is gone, pair that has come) for each neighbour that sees its
        pair change; the work is done as the caller reads them. A symbol fewer makes at most
        two places more, so all joins together cost O(n).
        """
        symbols, left, right, places = self.symbols, self.left, self.right, self.places
        first, second = pair
        for i in sorted(places.pop(pair, ())):
            j = right[i]
            if symbols[i] != first or symbols[j] != second:
                continue
            before, after = left[i], right[j]
            symbols[i], symbols[j] = new, END
            right[i], left[after] = after, i
            if (symbol := symbols[before]) != END:
                places[symbol, new].append(before)
                yield i, (symbol, first), (symbol, new)
            if (symbol := symbols[after]) != END:
                places[new, symbol].append(i)
                yield i, (second, symbol), (new, symbol)

    def words(self) -> Iterator[list[int]]:
        """Yield each word's symbols as they now are."""
        i = self.right[0]
        while i < len(self.symbols):
            word = []
            while (symbol := self.symbols[i]) != END:
                word.append(symbol)
                i = self.right[i]
            yield word
            i = self.right[i]


def learn_merges(words: Counter[bytes], num_merges: int) -> Iterator[Pair]:
    """Yield the pairs to join, most frequent first; number n makes symbol 256 + n.

    A word that occurs 1,000 times is joined once and counted 1,000 times.
    A count that has fallen since it went on the heap is put back corrected.
    """
    symbol = {byte: i for i, byte in enumerate(BYTES)}
    chain = Chain([symbol[byte] for byte in word] for word in words)
    times = [0]
    for word, count in words.items():
        times.extend([count] * (len(word) + 1))
    counts: Counter[Pair] = Counter()
    for pair, places in chain.places.items():
        counts[pair] = sum(times[i] for i in places)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    new = 256
    while heap and new < 256 + num_merges:
        count, pair = heapq.heappop(heap)
        if -count != counts[pair]:
            if counts[pair] > 0:
                heapq.heappush(heap, (-counts[pair], pair))
            continue
        come = set()
        for i, before, after in chain.join(pair, new):
            counts[before] -= times[i]
            counts[after] += times[i]
            come.add(after)
        for after in come:
            if counts[after] > 0:
                heapq.heappush(heap, (-counts[after], after))
        yield pair
        new += 1


class Tokenizer:
    """A vocabulary and the merges that make it.

    merges: pairs of byte strings, in the order in which they are joined. vocab: the byte string
    of each id; by default the 256 bytes in GPT-2's order and then one entry a merge. If it
    holds ``<|endoftext|>``, that is a token of its own, which no merge makes.
    """

    def __init__(
        self, merges: Iterable[tuple[bytes, bytes]], vocab: Iterable[bytes] | None = None
    ) -> None:
        self.merges = list(merges)
        if vocab is None:
            made = (first + second for first, second in self.merges)
            vocab = dict.fromkeys([*(bytes([byte]) for byte in BYTES), *made])
        self.vocab = list(vocab)
        ids = {token: i for i, token in enumerate(self.vocab)}
        _check_vocabulary(self.vocab, ids, self.merges)
        self.end_of_text: int | None = ids.get(END_OF_TEXT.encode())
        self._byte_ids = [ids[bytes([byte])] for byte in range(256)]
        self._rules = [((ids[a], ids[b]), ids[a + b]) for a, b in self.merges]
        self._ranks = {pair: rank for rank, (pair, _) in enumerate(self._rules)}
        self._cache: dict[str, list[int]] = {}
        self._cached = 0

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return len(self.vocab)

    @classmethod
    def train(
        cls,
        text: str | bytes,
        vocab_size: int,
        *,
        end_of_text: bool = False,
        progress: bool = False,
    ) -> "Tokenizer":
        """Learn a vocabulary of ``vocab_size`` ids; fewer if the text has no pair left to join.

        end_of_text: keep the last id for ``<|endoftext|>``, over which no pair is counted.
        progress: show a bar on stdout. Raises ValueError below 256 ids (257 with end_of_text).
        """
        smallest = 256 + end_of_text
        if operator.index(vocab_size) < smallest:
            raise ValueError(f"vocab_size: got {vocab_size}, need at least {smallest}")
        words: Counter[bytes] = Counter()
        for part in _as_text(text).split(END_OF_TEXT) if end_of_text else [_as_text(text)]:
            counts = Counter(WORD.findall(part))
            words.update({_as_bytes(word): count for word, count in counts.items()})
        vocab = [bytes([byte]) for byte in BYTES]
        merges = []
        num_merges = vocab_size - smallest
        done = bar(num_merges, what="merges", show=progress)
        for first, second in learn_merges(words, num_merges):
            merges.append((vocab[first], vocab[second]))
            vocab.append(vocab[first] + vocab[second])
            done.update()
        done.close()
        return cls(merges, [*vocab, END_OF_TEXT.encode()] if end_of_text else vocab)

    def encode(self, text: str | bytes, *, special: bool = True) -> list[int]:
        """Return the ids of a text.

        Bytes are read as UTF-8, and those that are not valid UTF-8 are kept as they are.
        special: read ``<|endoftext|>`` as that one token, if the vocabulary has it; with False
        it is characters like any others, which is the safe reading of a stranger's text.
        Raises ValueError for a str with a lone surrogate.
        """
        text = _as_text(text)
        if self.end_of_text is None or not special:
            return self._encode(text)
        ids: list[int] = []
        for part in text.split(END_OF_TEXT):
            ids += [*self._encode(part), self.end_of_text]
        return ids[:-1]

    def _encode(self, text: str) -> list[int]:
        words = WORD.findall(text)
        cache = self._cache
        unseen = [word for word in dict.fromkeys(words) if word not in cache]
        if unseen:
            rows = [_as_bytes(word) for word in unseen]
            cache.update(zip(unseen, self._join(rows), strict=True))
            self._cached += sum(map(len, rows))
        ids: list[int] = []
        for word in words:
            ids += cache[word]
        if self._cached > CACHED_BYTES:
            cache.clear()
            self._cached = 0
        return ids

    def _join(self, words: list[bytes]) -> Iterator[list[int]]:
        """Yield the ids of each word: all words at once, one pass for a merge that occurs."""
        chain = Chain([self._byte_ids[byte] for byte in word] for word in words)
        ranks = self._ranks
        heap = [ranks[pair] for pair in chain.places if pair in ranks]
        heapq.heapify(heap)
        waiting = set(heap)
        while heap:
            rank = heapq.heappop(heap)
            waiting.remove(rank)
            pair, new = self._rules[rank]
            for _, _, come in chain.join(pair, new):
                if come in ranks and ranks[come] not in waiting:
                    waiting.add(ranks[come])
                    heapq.heappush(heap, ranks[come])
        return chain.words()

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that the ids stand for.

        Raises ValueError for an id out of range, TypeError for anything but a row of integers.
        """
        try:
            indices = [operator.index(i) for i in ids]
        except TypeError:
            raise TypeError(f"ids: got {ids!r}, need one row of integers") from None
        for i in indices:
            if not 0 <= i < len(self.vocab):
                raise ValueError(f"ids: got {i}, need 0 to {len(self.vocab) - 1}")
        return b"".join([self.vocab[i] for i in indices])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text; what is not valid UTF-8, such as half a character, becomes �."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def save(self, folder: str | Path) -> None:
        """Write GPT-2's two files, vocab.json and merges.txt."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ids = {_written(token): i for i, token in enumerate(self.vocab)}
        pairs = [f"{_written(first)} {_written(second)}\n" for first, second in self.merges]
        vocab = json.dumps(ids, ensure_ascii=False, separators=(",", ":"))
        (folder / "vocab.json").write_text(vocab, encoding="utf-8")
        (folder / "merges.txt").write_text(
            "".join(["#version: 0.2\n", *pairs]), encoding="utf-8", newline="\n"
        )

    @classmethod
    def from_files(cls, vocab: str | Path, merges: str | Path | None = None) -> "Tokenizer":
        """Read GPT-2's two files: a folder that has both, or vocab.json and merges.txt.

        With a vocabulary alone, merges.txt is looked for beside it. Raises FileNotFoundError,
        or ValueError naming file, line and fault.
        """
        vocab = Path(vocab)
        if vocab.is_dir():
            vocab = vocab / "vocab.json"
        merges = vocab.with_name("merges.txt") if merges is None else Path(merges)
        tokens = _read_vocab(vocab)
        pairs = _read_merges(merges)
        try:
            return cls(pairs, tokens)
        except ValueError as error:
            raise ValueError(f"{vocab} does not match {merges}: {error}") from None


def _check_vocabulary(
    vocab: list[bytes], ids: dict[bytes, int], merges: list[tuple[bytes, bytes]]
) -> None:
    """Refuse a vocabulary unless it holds exactly the 256 bytes and what the merges make."""
    if len(ids) < len(vocab):
        token = Counter(vocab).most_common(1)[0][0]
        raise ValueError(f"token {_written(token)!r} has two ids")
    made = {bytes([byte]) for byte in range(256)}
    for byte in sorted(made - ids.keys()):
        raise ValueError(f"byte {byte[0]}, {_written(byte)!r}, has no id")
    seen = set()
    for line, (first, second) in enumerate(merges, 1):
        name = f"merge {line}, {_written(first)!r} + {_written(second)!r},"
        if (first, second) in seen:
            raise ValueError(f"{name} is there twice")
        for part in (first, second):
            if part not in made:
                raise ValueError(
                    f"{name} joins {_written(part)!r}, which no earlier merge makes"
                )
        if first + second not in ids:
            raise ValueError(f"{name} makes a token that has no id")
        seen.add((first, second))
        made.add(first + second)
    if unmade := ids.keys() - made - {END_OF_TEXT.encode()}:
        example = _written(min(unmade, key=ids.__getitem__))
        raise ValueError(f"{len(unmade)} tokens that no merge makes, the first {example!r}")


def _written(token: bytes) -> str:
    """Return a token as GPT-2's files write it, one visible character a byte."""
    return "".join(map(BYTE_TO_CHARACTER.__getitem__, token))


def _read(token: str) -> bytes:
    """Return the bytes of a token as GPT-2's files write it."""
    try:
        return bytes(map(CHARACTER_TO_BYTE.__getitem__, token))
    except KeyError as error:
        raise ValueError(f"{token!r} has {error}, which stands for no byte") from None


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not valid UTF-8") from None
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is not there; a GPT-2 tokenizer is vocab.json and merges.txt"
        ) from None


def _read_vocab(path: Path) -> list[bytes]:
    """Read vocab.json: an object that gives each token its id, 0 to n - 1."""
    try:
        ids = json.loads(_read_file(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    if not isinstance(ids, dict):
        raise ValueError(f"{path}: got a JSON {type(ids).__name__}, need an object")
    numbers = list(ids.values())
    if any(type(i) is not int for i in numbers) or sorted(numbers) != list(range(len(ids))):
        raise ValueError(f"{path}: the ids of {len(ids)} tokens must be 0 to {len(ids) - 1}")
    try:
        return [_read(token) for token in sorted(ids, key=ids.__getitem__)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_merges(path: Path) -> list[tuple[bytes, bytes]]:
    """Read merges.txt: perhaps a line with the version, then one pair a line."""
    lines = _read_file(path).split("\n")
    while lines and not lines[-1]:
        lines.pop()
    header = bool(lines) and lines[0].startswith("#version")
    merges = []
    for number, line in enumerate(lines[header:], 1 + header):
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise ValueError(f"{path}, line {number}: got {line!r}, need two parts and a space")
        try:
            merges.append((_read(parts[0]), _read(parts[1])))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return merges
