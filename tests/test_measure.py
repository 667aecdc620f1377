"""Measuring: what is called, how often, in which order. Never how long it took."""

import sys
import time

import pytest
import torch

from llmcourse import measure
from llmcourse.models import GPT2, GPT2Config

CONFIG = GPT2Config(vocab_size=13, context_length=8, width=8, num_layers=2, num_heads=2)


def test_functions_take_turns():
    order = []
    tasks = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = measure.interleaved(tasks, 2, warmup=1)
    assert order == list("abc") * 3
    assert {name: len(t) for name, t in times.items()} == {"a": 2, "b": 2, "c": 2}


def test_seconds_is_the_median_of_what_comes_after_the_warmup(monkeypatch):
    clock = iter([0, 7, 10, 11, 20, 24])  # 7, 1 and 4 seconds
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    calls = []
    assert measure.seconds(lambda: calls.append(0), repeats=3, warmup=2) == 4
    assert len(calls) == 5


def test_longer_work_takes_longer():
    slept = measure.interleaved({"s": lambda: time.sleep(0.02), "n": lambda: None}, 1)
    assert slept["s"][0] >= 0.02 > slept["n"][0] >= 0


@pytest.mark.parametrize("rate", [measure.matmul_rate, measure.bandwidth])
def test_a_rate_of_nothing_is_refused(rate):
    with pytest.raises(ValueError, match="got 0, needs a whole number >= 1"):
        rate(0)


def test_no_repeats_are_refused():
    with pytest.raises(ValueError, match="repeats"):
        measure.seconds(lambda: None, repeats=0)


def test_peak_counts_what_is_alive_at_one_time():
    x = torch.zeros(1000)  # there before: not counted

    def chain():
        y = x
        for _ in range(20):
            y = y + 1  # the new one and the one before
        return y

    assert measure.peak_memory(chain) == 2 * 4000


def test_peak_sees_views_and_in_place_work_as_free():
    x = torch.zeros(10, 100)

    def free():
        x.add_(1).view(-1)[:3].mul_(2)
        return x.T

    assert measure.peak_memory(free) == 0


def test_peak_includes_what_a_backward_pass_needs():
    w = torch.ones(100, requires_grad=True)

    def square(keep_graph):
        with torch.set_grad_enabled(keep_graph):
            return [(w * 2).exp() for _ in range(2)]

    # exp keeps its output for the gradient; w * 2 is freed at once.
    assert measure.peak_memory(lambda: square(False)) == 3 * 400
    assert measure.peak_memory(lambda: square(True)) == 3 * 400
    # sin keeps its input.
    assert measure.peak_memory(lambda: (w * 2).sin().sin()) == 3 * 400


def test_attention_without_a_cache_holds_a_square():
    from llmcourse.ops import softmax

    def attend(T):
        q, k, v = torch.zeros(3, 1, T, 1, 2)
        return measure.peak_memory(lambda: softmax.parallel(q, k, v))

    assert 3.5 < attend(400) / attend(200) < 4.5  # T x T scores, exactly 4 in the limit


def test_rates_are_work_over_time(monkeypatch):
    monkeypatch.setattr(measure, "seconds", lambda function, repeats: 0.5)
    assert measure.matmul_rate(8) == 2 * 8**3 / 0.5
    assert measure.bandwidth(64) == 2 * 64 / 0.5


@pytest.mark.parametrize("use_cache", [False, True])
def test_decoding_reads_what_it_says(use_cache):
    model, read = GPT2(CONFIG), []
    model.register_forward_pre_hook(
        lambda _, args: read.append((args[0].shape[1], args[1].length if args[1:] else None))
    )
    times = measure.decode_seconds(model, [1, 8], use_cache=use_cache, repeats=2)
    assert len(times) == 2 and min(times) > 0
    one, eight = [(1, 0)] * 3, [(1, 0), (6, 0), (1, 6), (1, 7)]  # the first is for warmth
    assert read == (one + eight if use_cache else [(1, None)] * 3 + [(8, None)] * 3)


def test_decoding_beyond_the_context_or_of_nothing_is_refused():
    for lengths in ([9], [0], [], [1.5]):
        with pytest.raises(ValueError, match=r"context"):
            measure.decode_seconds(GPT2(CONFIG), lengths, use_cache=False, repeats=1)


def test_the_machine_is_described():
    facts = measure.machine()
    assert facts["python"] == sys.version.split()[0] and facts["torch"] == torch.__version__
    assert facts["cores"] >= 1 and facts["threads"] >= 1 and facts["cpu"]


def test_flops_are_two_for_each_multiply_add_also_of_products_added_in_place():
    a, b, c = torch.ones(3, 4, 5), torch.ones(3, 5, 6), torch.ones(3, 4, 6)
    assert measure.flops(lambda: a @ b) == 2 * 3 * 4 * 5 * 6
    assert measure.flops(lambda: torch.baddbmm(c, a, b)) == 2 * 3 * 4 * 5 * 6
    assert measure.flops(lambda: c.baddbmm_(a, b, alpha=-1)) == 2 * 3 * 4 * 5 * 6
