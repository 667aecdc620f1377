"""Softmax attention against its definition, PyTorch's own attention, and its laws."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcourse.ops import softmax

# Errors are max|a - b| / max|b|. float64 keeps 16 digits and float32 7; sums over at most
# a few dozen terms lose one or two of them.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


def make(B=2, Tq=7, Tk=7, H=4, Hk=4, K=5, V=3, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    sizes = [(B, Tq, H, K), (B, Tk, Hk, K), (B, Tk, Hk, V)]
    return [torch.randn(s, generator=g, dtype=dtype, requires_grad=True) for s in sizes]


def definition(q, k, v, scale):
    """One query at a time, straight from the formula."""
    B, Tq, H, _ = q.shape
    offset, group = k.shape[1] - Tq, H // k.shape[2]
    out = torch.zeros(B, Tq, H, v.shape[-1], dtype=q.dtype)
    for b in range(B):
        for t in range(Tq):
            for h in range(H):
                seen = slice(0, offset + t + 1)
                score = (k[b, seen, h // group] @ q[b, t, h]) * scale
                weight = score.exp() / score.exp().sum()
                out[b, t, h] = weight @ v[b, seen, h // group]
    return out


def pytorch(q, k, v, scale=None):
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)


SHAPES = [
    dict(),
    dict(Tq=1, Tk=1),
    dict(Tq=1, Tk=9),
    dict(Tq=3, Tk=8, H=6, Hk=2),
    dict(Tq=5, Tk=5, H=4, Hk=1, K=2, V=8),
    dict(B=1, Tq=33, Tk=33, H=1, Hk=1, K=16, V=16),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_definition(shape):
    q, k, v = make(**shape)
    assert error(softmax.parallel(q, k, v), definition(q, k, v, q.shape[-1] ** -0.5)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_equal_pytorch_attention(shape, dtype):
    q, k, v = make(**shape, dtype=dtype)
    ours, theirs = softmax.parallel(q, k, v, scale=0.3), pytorch(q, k, v, scale=0.3)
    assert ours.dtype == dtype
    assert error(ours, theirs) < TOLERANCE[dtype]
    weight = torch.randn(ours.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    for a, b, name in zip(
        torch.autograd.grad((ours * weight).sum(), (q, k, v)),
        torch.autograd.grad((theirs * weight).sum(), (q, k, v)),
        "qkv",
        strict=True,
    ):
        # With one position to look at, the scores' gradient is 0: compare with the size of v.
        size = max(b.abs().max().item(), 1e-3 * v.abs().max().item())
        assert (a - b).abs().max().item() / size < TOLERANCE[dtype], name


@given(T=st.integers(2, 12), t=st.integers(0, 10), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_causality_no_output_depends_on_a_later_key_or_value(T, t, seed):
    t = min(t, T - 2)
    q, k, v = make(Tq=T, Tk=T, seed=seed)
    before = softmax.parallel(q, k, v)[:, : t + 1]
    grads = torch.autograd.grad(before.sum(), (k, v))
    for grad in grads:
        assert torch.equal(grad[:, t + 1 :], torch.zeros_like(grad[:, t + 1 :]))
    other_k, other_v = (
        torch.cat([x[:, : t + 1], x[:, t + 1 :] * 100 + 7], dim=1) for x in (k, v)
    )
    assert torch.equal(softmax.parallel(q, other_k, other_v)[:, : t + 1], before)


@given(order=st.permutations(range(6)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_the_past_does_not_matter(order):
    q, k, v = make(Tq=1, Tk=6)
    index = torch.tensor(order)
    assert (
        error(softmax.parallel(q, k[:, index], v[:, index]), softmax.parallel(q, k, v)) < 1e-12
    )


@given(Tk=st.integers(1, 12), Tq=st.integers(1, 12), group=st.sampled_from([1, 2, 4]))
@settings(max_examples=25, deadline=None)
def test_fewer_queries_are_the_last_rows_of_all_queries(Tk, Tq, group):
    Tq = min(Tq, Tk)
    q, k, v = make(Tq=Tk, Tk=Tk, Hk=4 // group)
    full = softmax.parallel(q, k, v)
    assert error(softmax.parallel(q[:, Tk - Tq :], k, v), full[:, Tk - Tq :]) < 1e-12


def test_grouped_heads_equal_repeated_heads():
    q, k, v = make(H=6, Hk=2)
    repeated = softmax.parallel(q, k.repeat_interleave(3, 2), v.repeat_interleave(3, 2))
    assert error(softmax.parallel(q, k, v), repeated) < 1e-12


def test_one_position_returns_its_value():
    q, k, v = make(Tq=1, Tk=1)
    assert error(softmax.parallel(q, k, v), v) < 1e-15


def test_scale_defaults_to_the_root_of_the_key_width():
    q, k, v = make(K=16)
    assert torch.equal(softmax.parallel(q, k, v), softmax.parallel(q, k, v, scale=0.25))


def test_scale_zero_averages_the_past():
    q, k, v = make()
    count = torch.arange(1, 8)[:, None, None]
    assert error(softmax.parallel(q, k, v, scale=0.0), v.cumsum(1) / count) < 1e-12


def test_weights_are_rows_of_a_distribution_over_the_past():
    q, k, _ = make(Tq=3, Tk=7, H=4, Hk=2)
    p = softmax.weights(q, k)
    assert p.shape == (2, 4, 3, 7)
    assert error(p.sum(-1), torch.ones(2, 4, 3)) < 1e-12
    assert (p >= 0).all()
    assert torch.equal(p.triu(5), torch.zeros_like(p))


@pytest.mark.parametrize("size", [1e2, 1e4, 1e8])
def test_huge_scores_stay_finite_with_finite_gradients(size):
    q, k, v = (x.detach().float().requires_grad_() for x in make())
    out = softmax.parallel(q * size, k, v)
    assert out.isfinite().all()
    future = softmax.weights(q * size, k).triu(1)
    assert torch.equal(future, torch.zeros_like(future))  # no score outweighs the mask
    for grad in torch.autograd.grad(out.sum(), (q, k, v)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_float32_and_rounded_once(dtype):
    q, k, v = (x.detach().to(dtype) for x in make())
    out = softmax.parallel(q, k, v)
    assert out.dtype == dtype
    assert torch.equal(out, softmax.parallel(q.float(), k.float(), v.float()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(dtype):
    q, k, v = (x.detach().to(dtype) for x in make(Tq=20, Tk=20))
    expected = softmax.parallel(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = softmax.parallel(q, k, v)
    assert got.dtype == dtype
    assert torch.equal(got, expected)


def test_inputs_stay_unchanged():
    inputs = make()
    before = [x.detach().clone() for x in inputs]
    softmax.parallel(*inputs).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_shapes_alone_can_be_asked_for():
    q, k, v = (x.to("meta") for x in make(Tq=3, H=8))
    assert softmax.parallel(q, k, v).shape == (2, 3, 8, 3)


def bad(name, **changes):
    """Good inputs with one of them replaced."""
    inputs = dict(zip("qkv", (x.detach() for x in make()), strict=True))
    return inputs | changes, name


@pytest.mark.parametrize(
    "inputs, message",
    [
        bad("q: got list", q=[[1.0]]),
        bad("q: got torch.int64", q=torch.zeros(2, 7, 4, 5, dtype=torch.int64)),
        bad(r"q: got \[7, 4, 5\]", q=torch.zeros(7, 4, 5, dtype=torch.float64)),
        bad(r"q: got \[2, 0, 4, 5\]", q=torch.zeros(2, 0, 4, 5, dtype=torch.float64)),
        bad("k: got torch.float32", k=torch.zeros(2, 7, 4, 5)),
        bad("k: got meta", k=torch.zeros(2, 7, 4, 5, dtype=torch.float64, device="meta")),
        bad(r"k: got \[2, 7, 5\]", k=torch.zeros(2, 7, 5, dtype=torch.float64)),
        bad(r"k: got \[1, 7, 4, 5\].*B = 2", k=torch.zeros(1, 7, 4, 5, dtype=torch.float64)),
        bad(r"k: got \[2, 7, 4, 6\].*K = 5", k=torch.zeros(2, 7, 4, 6, dtype=torch.float64)),
        bad("k: got 6 positions.*7", k=torch.zeros(2, 6, 4, 5, dtype=torch.float64)),
        bad("k: got 3 heads.*divides q's 4", k=torch.zeros(2, 7, 3, 5, dtype=torch.float64)),
        bad("k: got 8 heads", k=torch.zeros(2, 7, 8, 5, dtype=torch.float64)),
        bad(r"v: got \[2, 6, 4, 3\]", v=torch.zeros(2, 6, 4, 3, dtype=torch.float64)),
        bad(r"v: got \[2, 7, 2, 3\]", v=torch.zeros(2, 7, 2, 3, dtype=torch.float64)),
        bad("v: got torch.float16", v=torch.zeros(2, 7, 4, 3, dtype=torch.float16)),
        bad("scale: got nan", scale=math.nan),
    ],
)
def test_bad_input_is_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        softmax.parallel(**inputs)
