"""The bigram model against counting by hand, and as a model like any other."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from llmcourse.generate import generate
from llmcourse.models.bigram import Bigram
from llmcourse.train import evaluate


def test_the_table_holds_the_frequencies_of_the_pairs():
    ids = torch.randint(5, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    model = Bigram.fit(ids, 6, extra=0.5)
    pairs, firsts = Counter(pairwise(ids)), Counter(ids[:-1])
    for i in range(6):
        for j in range(6):
            expected = (pairs[i, j] + 0.5) / (firsts[i] + 0.5 * 6)
            assert model.table[i, j].exp().item() == pytest.approx(expected, rel=1e-6), (i, j)


def test_only_the_last_token_matters():
    model = Bigram.fit([0, 1, 2, 0, 2, 1], 3)
    one, other = model(torch.tensor([[0, 0, 1], [2, 1, 1]]))
    assert one.shape == (3, 3)
    assert torch.equal(one[-1], other[-1])
    assert not torch.equal(one[0], other[0])


def test_it_generates_with_and_without_a_cache():
    model = Bigram.fit([0, 1, 2, 3] * 5, 4, extra=1e-6)
    for use_cache in (True, False):
        ids = generate(model, torch.tensor([[2]]), 5, seed=0, use_cache=use_cache)
        assert ids.tolist() == [[2, 3, 0, 1, 2, 3]]


def test_its_loss_is_the_mean_surprise():
    ids = torch.tensor([0, 1, 0, 0, 1, 1, 0])
    model = Bigram.fit(ids, 2, extra=1.0)
    expected = -sum(model.table[i, j].item() for i, j in pairwise(ids.tolist())) / 6
    assert evaluate(model, ids, context=4) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ids": [1]}, r"ids: got \[1\], needs a row of two or more"),
        ({"ids": [[0, 1]]}, r"ids: got torch.int64 of shape \(1, 2\)"),
        ({"ids": [0, 3]}, "ids: got ids from 0 to 3, needs ids from 0 to 2"),
        ({"ids": [-1, 1]}, "ids: got ids from -1 to 1"),
        ({"extra": 0}, "extra: got 0, needs more than 0"),
        ({"ids": [0.5, 1.5]}, "ids: got torch.float32"),
        ({"vocab_size": 0}, "vocab_size: got 0"),
    ],
)
def test_what_cannot_be_counted_is_refused(change, message):
    arguments = {"ids": [0, 1, 2], "vocab_size": 3, "extra": 0.1} | change
    with pytest.raises(ValueError, match=message):
        Bigram.fit(**arguments)


@pytest.mark.parametrize("ids", [[[-1]], [[3]], [[0.5]], [[]]])
def test_it_reads_no_row_for_an_id_that_is_none(ids):
    model = Bigram.fit([0, 1, 2], 3)
    with pytest.raises(ValueError, match="ids: got"):
        model(torch.tensor(ids))
