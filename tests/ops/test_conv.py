"""The short causal convolution against torch's, its step, and its laws."""

import pytest
import torch
import torch.nn.functional as F

from llmcourse.ops import conv


def make(B=2, T=9, D=5, W=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, T, D), (D, W), (B, W - 1, D)]
    return [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]


@pytest.mark.parametrize(("T", "W"), [(9, 4), (1, 4), (2, 4), (9, 1), (3, 3)])
def test_it_is_a_depthwise_convolution_of_the_past(T, W):
    """Reference: torch.nn.functional.conv1d with one group a channel, gradients included."""
    leaves = [x.requires_grad_() for x in make(T=T, W=W)]
    x, weight, state = leaves
    y, last = conv.causal(x, weight, initial_state=state)
    window = torch.cat([state, x], 1)
    expected = F.conv1d(window.mT, weight.unsqueeze(1), groups=x.shape[-1]).mT
    assert torch.allclose(y, expected, rtol=0, atol=1e-12)
    assert torch.equal(last, window[:, T:])
    loss = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).double()
    got = torch.autograd.grad((y * loss).sum(), leaves)
    for a, b in zip(got, torch.autograd.grad((expected * loss).sum(), leaves), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_without_a_state_the_past_is_zero():
    x, weight, state = make()
    y, _ = conv.causal(x, weight)
    assert torch.equal(y, conv.causal(x, weight, initial_state=torch.zeros_like(state))[0])


def test_steps_one_by_one_are_the_whole():
    x, weight, state = make()
    expected, last = conv.causal(x, weight, initial_state=state)
    for t in range(x.shape[1]):
        y, state = conv.step(x[:, t], weight, state)
        assert torch.equal(y, expected[:, t])
    assert torch.equal(state, last)


def test_no_output_depends_on_a_later_token():
    x, weight, _ = make()
    changed = x.clone()
    changed[:, 5:] += 1
    assert torch.equal(conv.causal(changed, weight)[0][:, :5], conv.causal(x, weight)[0][:, :5])


def test_half_precision_in_is_rounded_once_on_the_way_out():
    x, weight, _ = (y.bfloat16() for y in make())
    y, state = conv.causal(x, weight)
    expected, _ = conv.causal(x.double(), weight.double())
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert (y - expected).abs().max() <= 2**-8 * expected.abs().max()


BAD = {
    "x": (0, lambda x: x[0]),
    "weight": (1, lambda x: x[:-1]),
    "initial_state": (2, lambda x: x[:, :-1]),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("spoil", ["shape", "whole numbers", "device"])
def test_a_misfit_is_refused_by_name(name, spoil):
    i, cut = BAD[name]
    args = make()
    args[i] = {
        "shape": cut,
        "whole numbers": torch.Tensor.long,
        "device": lambda x: x.to("meta"),
    }[spoil](args[i])
    if name == "x" and spoil == "device":
        name = "weight"  # whichever is not where x is
    with pytest.raises(ValueError, match=f"{name}: got"):
        conv.causal(args[0], args[1], initial_state=args[2])


def test_the_state_holds_no_more_than_itself():
    _, state = conv.causal(torch.randn(1, 500, 2), torch.randn(2, 4))
    assert state.untyped_storage().nbytes() == state.numel() * 4
