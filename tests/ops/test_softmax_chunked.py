"""Chunked softmax attention is the parallel form, and never holds a T x T matrix.

The error of a tensor is max|a - b| / max|b| against `parallel` in float64 (or / 0.1, where the
right gradient is 0: one token's q has none); the lines are 1e-10 in float64, 1e-5 in float32.
Independent reference: torch's scaled_dot_product_attention.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from llmcourse.ops import softmax

LINES = {torch.float64: 1e-10, torch.float32: 1e-5}


def make(B=2, Tq=70, Tk=70, H=4, Hk=2, K=8, V=6, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, Tq, H, K), (B, Tk, Hk, K), (B, Tk, Hk, V)]
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return q * spread, k, v


def results(form, tensors, dtype=torch.float64, **options):
    """The output, and the gradients of a function of it by q, k and v."""
    leaves = [x.to(dtype).clone().requires_grad_() for x in tensors]
    o = form(*leaves, **options)
    generator = torch.Generator().manual_seed(1)
    loss = (o.double() * torch.randn(o.shape, generator=generator, dtype=torch.float64)).sum()
    return [o, *torch.autograd.grad(loss, leaves)]


def assert_close(got, expected, line):
    for name, g, e in zip(("o", "dq", "dk", "dv"), got, expected, strict=True):
        error = ((g - e).abs().max() / e.abs().max().clamp_min(0.1)).item()
        assert error <= line, f"{name} is off by {error:.1e} > {line:.0e}"


@pytest.mark.parametrize("dtype", LINES)
@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 63, 64, 65, 70, 130, 257, 1000])
def test_chunked_is_parallel_at_every_length(T, dtype):
    x = make(B=1, Tq=T, Tk=T)
    expected = results(softmax.parallel, [y.to(dtype).double() for y in x])
    assert_close(results(softmax.chunked, x, dtype, chunk_size=64), expected, LINES[dtype])


@settings(max_examples=40, deadline=None)
@given(
    Tq=st.integers(1, 30),
    past=st.integers(0, 30),
    C=st.integers(1, 70),
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2), (3, 3)]),
    V=st.integers(1, 9),
    seed=st.integers(0, 999),
)
def test_chunked_is_parallel_for_any_shape(Tq, past, C, heads, V, seed):
    x = make(Tq=Tq, Tk=Tq + past, H=heads[0], Hk=heads[1], V=V, seed=seed)
    assert_close(results(softmax.chunked, x, chunk_size=C), results(softmax.parallel, x), 1e-10)


def test_chunked_is_what_pytorch_computes():
    x = make()

    def pytorch(q, k, v):
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        ).transpose(1, 2)

    assert_close(results(softmax.chunked, x, chunk_size=16), results(pytorch, x), 1e-10)


def test_scores_in_the_thousands_neither_overflow_nor_vanish():
    x = make(spread=1e4)
    assert_close(results(softmax.chunked, x, chunk_size=16), results(softmax.parallel, x), 1e-9)


def test_half_precision_in_is_rounded_once_on_the_way_out():
    x = [y.bfloat16() for y in make()]
    o = softmax.chunked(*x, chunk_size=16)
    expected = softmax.parallel(*(y.double() for y in x))
    assert o.dtype == torch.bfloat16
    assert (o - expected).abs().max() <= (
        torch.finfo(o.dtype).eps / 2 + 1e-5
    ) * expected.abs().max()


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for y in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(y, torch.Tensor):
                self.elements = max(self.elements, y.numel())
        return result


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_only_the_parallel_form_holds_a_square_of_the_length(form):
    T = 512
    x = make(B=1, Tq=T, Tk=T, H=1, Hk=1)
    with Largest() as largest:
        results(getattr(softmax, form), x, **({"chunk_size": 16} if form == "chunked" else {}))
    assert (largest.elements >= T * T) == (form == "parallel")


def test_a_compiled_chunked_form_gives_the_same_results():
    x = make()
    compiled = torch.compile(softmax.chunked, backend="aot_eager")
    assert_close(results(compiled, x, chunk_size=32), results(softmax.parallel, x), 1e-10)


@pytest.mark.parametrize("size", [0, -3, 1.5, True])
def test_a_chunk_size_that_is_no_count_is_refused(size):
    with pytest.raises(ValueError, match="chunk_size: got"):
        softmax.chunked(*make(), chunk_size=size)


def test_a_gradient_of_a_gradient_is_refused_never_wrong():
    q = torch.randn(1, 4, 1, 2, requires_grad=True)
    out = softmax.chunked(q, q, q)
    with pytest.raises(NotImplementedError, match="only the parallel form"):
        torch.autograd.grad(out.sin().sum(), q, create_graph=True)
