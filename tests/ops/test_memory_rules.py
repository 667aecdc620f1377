"""Laws of the recurrent memory rules: their forms agree, in outputs, final states and
gradients.

The error of a tensor is max|a - b| / max|b|, against the recurrent form in float64. Lines:
float64 1e-10, float32 1e-5 (about a hundred roundings of 2**-24 in sums of this length), as the
design sets. Independent references: transformers' Kimi Linear (KDA) and Qwen3-Next (gated delta
rule).
"""

import inspect
import shutil
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcourse.measure import peak_memory
from llmcourse.ops import _chunks, delta, gated_delta, kda, linear

RULES = {"linear": linear, "delta": delta, "gated_delta": gated_delta, "kda": kda}
LINES = {torch.float64: 1e-10, torch.float32: 1e-5}
LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 70, 130, 257, 1000]
GATES = ["0", "-1e-30", "-5", "-6", "-30", "-100", "-1e4", "-3e38", "mixed", "apart"]


def gate(kind, shape, generator):
    """Log decays of one kind; "apart" puts a channel (or head) at -100 beside one at 0."""
    if kind == "mixed":
        levels = torch.tensor([0.0, -1e-3, -0.1, -1.0, -5.0, -6.0, -30.0, -100.0]).double()
        return levels[torch.randint(len(levels), shape, generator=generator)]
    if kind == "apart":
        g = -torch.rand(shape, generator=generator, dtype=torch.float64)
        g[..., 0], g[..., 1] = -100.0, 0.0
        return g
    return torch.full(shape, float(kind), dtype=torch.float64)


def inputs(name, B=1, T=70, H=2, K=8, V=6, g="mixed", beta="mixed", seed=0):
    """Arguments of a rule by name, in float64: unit keys, and a state to start from."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = {
        "q": normal(B, T, H, K),
        "k": F.normalize(normal(B, T, H, K), dim=-1),
        "v": normal(B, T, H, V),
    }
    if name in ("gated_delta", "kda"):
        x["g"] = gate(g, (B, T, H, K) if name == "kda" else (B, T, H), generator)
    if name != "linear":
        strengths = 2 * torch.rand((B, T, H), generator=generator, dtype=torch.float64)
        x["beta"] = strengths if beta == "mixed" else torch.full_like(strengths, float(beta))
    x["initial_state"] = normal(B, H, K, V)
    return x


def results(form, x, dtype=torch.float64, **options):
    """Output, final state, and the gradients of a function of both by every input."""
    x = {n: t.to(dtype).clone().requires_grad_() for n, t in x.items()}
    o, state = form(**x, **options)
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (y.double() * torch.randn(y.shape, generator=generator, dtype=torch.float64)).sum()
        for y in (o, state)
    )
    gradients = torch.autograd.grad(loss, list(x.values()))
    return {"o": o, "state": state} | {f"d{n}": d for n, d in zip(x, gradients, strict=True)}


def assert_close(got, expected, line, case=""):
    for name, e in expected.items():
        g = got[name].double()
        assert g.isfinite().all(), f"{case}: {name} is not finite"
        error = ((g - e).abs().max() / e.abs().max().clamp_min(1e-30)).item()
        at_zero = e.abs().max() < 1e-30 and g.abs().max() < 1e-30
        assert error <= line or at_zero, f"{case}: {name} is off by {error:.1e} > {line:.0e}"


def check_chunked(name, dtype, chunk_sizes=(64,), **case):
    x = inputs(name, **case)
    expected = results(RULES[name].recurrent, {n: t.to(dtype).double() for n, t in x.items()})
    for C in chunk_sizes:
        got = results(RULES[name].chunked, x, dtype, chunk_size=C)
        assert_close(got, expected, LINES[dtype], f"{name} {case} chunks of {C}, {dtype}")


@pytest.mark.parametrize("dtype", LINES)
@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("name", RULES)
def test_chunked_is_recurrent_at_every_length(name, T, dtype):
    check_chunked(name, dtype, T=T)


@pytest.mark.parametrize("dtype", LINES)
@pytest.mark.parametrize("g", GATES)
@pytest.mark.parametrize("name", ["gated_delta", "kda"])
def test_chunked_is_recurrent_for_every_gate(name, g, dtype):
    check_chunked(name, dtype, chunk_sizes=(16, 64), T=130, g=g)


@pytest.mark.parametrize("dtype", LINES)
@pytest.mark.parametrize("beta", [0, 1, 2])
@pytest.mark.parametrize("name", ["delta", "gated_delta", "kda"])
def test_chunked_is_recurrent_for_every_write_strength(name, beta, dtype):
    check_chunked(name, dtype, beta=beta)


@pytest.mark.parametrize("name", RULES)
def test_the_chunk_size_does_not_change_the_result(name):
    check_chunked(name, torch.float64, chunk_sizes=(1, 2, 3, 16, 48, 64, 128, 1000), B=2, T=65)


@pytest.mark.parametrize(("K", "V"), [(1, 1), (1, 5), (16, 3), (3, 16)])
@pytest.mark.parametrize("name", RULES)
def test_chunked_is_recurrent_for_every_width(name, K, V):
    check_chunked(name, torch.float64, K=K, V=V, B=2, H=3, T=33, g="-1")


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(RULES)),
    B=st.integers(1, 3),
    T=st.integers(1, 40),
    H=st.integers(1, 3),
    K=st.integers(2, 9),
    V=st.integers(1, 9),
    C=st.integers(1, 40),
    g=st.sampled_from(GATES),
    seed=st.integers(0, 999),
)
def test_chunked_is_recurrent_for_any_shape(name, B, T, H, K, V, C, g, seed):
    H = 2 if g == "apart" and name == "gated_delta" else H
    check_chunked(name, torch.float64, (C,), B=B, T=T, H=H, K=K, V=V, g=g, seed=seed)


@pytest.mark.parametrize("T", [1, 2, 17, 130])
@pytest.mark.parametrize("dtype", LINES)
@pytest.mark.parametrize("name", ["linear", "delta", "gated_delta"])
def test_parallel_is_recurrent(name, dtype, T):
    for g in GATES if name == "gated_delta" else ["0"]:
        x = inputs(name, T=T, g=g, B=2, H=3)
        exact = {n: t.to(dtype).double() for n, t in x.items()}
        expected = results(RULES[name].recurrent, exact)
        assert_close(results(RULES[name].parallel, x, dtype), expected, LINES[dtype], f"g {g}")


@pytest.mark.parametrize("dtype", LINES)
@pytest.mark.parametrize("name", RULES)
def test_a_stretch_of_chunks_goes_on_from_the_one_before(name, dtype, monkeypatch):
    monkeypatch.setattr(_chunks, "SEGMENT", 2 * 3 * 8 * 32)  # B * H * K * 32 tokens
    check_chunked(name, dtype, chunk_sizes=(16, 32, 64), B=2, H=3, T=101)


@pytest.mark.parametrize("name", RULES)
def test_steps_one_by_one_are_the_recurrent_form(name):
    x = inputs(name, T=5)
    expected, last = RULES[name].recurrent(**x)
    state = x.pop("initial_state")
    for t in range(5):
        o, state = RULES[name].step(**{n: y[:, t] for n, y in x.items()}, state=state)
        assert torch.equal(o, expected[:, t])
    assert torch.equal(state, last)


@pytest.mark.parametrize("cut", [1, 31, 64, 69])
@pytest.mark.parametrize("name", RULES)
def test_two_halves_are_one_whole(name, cut):
    x = inputs(name)
    whole, last = RULES[name].chunked(**x)
    state, pieces = x.pop("initial_state"), []
    for a, b in pairwise([0, cut, 70]):
        o, state = RULES[name].chunked(
            **{n: y[:, a:b] for n, y in x.items()}, initial_state=state
        )
        pieces.append(o)
    assert_close(
        {"o": torch.cat(pieces, 1), "state": state}, {"o": whole, "state": last}, 1e-12
    )


@pytest.mark.parametrize("name", RULES)
def test_no_output_depends_on_a_later_token(name):
    x, t = inputs(name), 37
    later = inputs(name, seed=1)
    changed = {
        n: y if n == "initial_state" else torch.cat([y[:, :t], later[n][:, t:]], 1)
        for n, y in x.items()
    }
    before, after = RULES[name].chunked(**x)[0], RULES[name].chunked(**changed)[0]
    assert_close({"o": after[:, :t]}, {"o": before[:, :t]}, 1e-12)
    assert not torch.allclose(after[:, t:], before[:, t:])


@pytest.mark.parametrize("name", RULES)
def test_the_rule_is_linear_in_values_and_initial_state_together(name):
    x, y = inputs(name), inputs(name, seed=1)
    both = x | {n: 2 * x[n] - 3 * y[n] for n in ("v", "initial_state")}
    other = x | {n: y[n] for n in ("v", "initial_state")}
    (a, s), (b, u), (c, w) = (RULES[name].chunked(**z) for z in (x, other, both))
    assert_close({"o": c, "state": w}, {"o": 2 * a - 3 * b, "state": 2 * s - 3 * u}, 1e-12)


def test_a_gate_of_zero_leaves_the_delta_rule():
    x = inputs("gated_delta", g="0")
    expected = results(delta.chunked, {n: y for n, y in x.items() if n != "g"})
    got = results(gated_delta.chunked, x)
    assert_close(got, expected, 1e-12)


def test_kda_with_equal_channels_is_the_gated_delta_rule():
    x = inputs("gated_delta")
    expected = results(gated_delta.chunked, x)
    got = results(kda.chunked, x | {"g": x["g"].unsqueeze(-1).repeat(1, 1, 1, 8)})
    got["dg"] = got["dg"].sum(-1)
    assert_close(got, expected, 1e-11)


def test_the_delta_rule_with_orthonormal_keys_and_full_strength_is_exact_memory():
    K = 16
    keys = torch.linalg.qr(torch.randn(K, K, dtype=torch.float64)).Q.view(1, K, 1, K)
    values = torch.randn(1, K, 1, 5, dtype=torch.float64)
    _, page = delta.chunked(keys, keys, values, torch.ones(1, K, 1).double(), scale=1.0)
    held = torch.einsum("btk,bkv->btv", keys[:, :, 0], page[:, 0])
    assert_close({"held": held}, {"held": values[:, :, 0]}, 1e-12)


def test_the_delta_rule_does_not_care_about_the_basis_of_the_keys():
    x = inputs("delta")
    Q = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    turned = x | {"q": x["q"] @ Q, "k": x["k"] @ Q, "initial_state": Q.T @ x["initial_state"]}
    (o, s), (p, u) = delta.chunked(**x), delta.chunked(**turned)
    assert_close({"o": p, "state": Q @ u}, {"o": o, "state": s}, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", RULES)
def test_half_precision_in_is_rounded_once_on_the_way_out(name, dtype):
    x = {n: y.to(dtype) for n, y in inputs(name, T=130, g="-1").items()}
    x["initial_state"] = x["initial_state"].float()
    o, state = RULES[name].chunked(**x)
    expected, last = RULES[name].recurrent(**{n: y.double() for n, y in x.items()})
    assert o.dtype == dtype
    assert state.dtype == torch.float32
    assert_close({"state": state}, {"state": last}, 1e-5)
    # one rounding to nearest: half a unit in the last place of the largest output
    assert_close({"o": o}, {"o": expected}, torch.finfo(dtype).eps / 2 + 1e-5)


@pytest.mark.parametrize("name", RULES)
def test_autocast_does_not_lower_the_precision(name):
    x = {n: y.float() for n, y in inputs(name).items()}
    plain = RULES[name].chunked(**x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = RULES[name].chunked(**x)
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


@pytest.mark.parametrize("name", RULES)
def test_inputs_are_left_as_they_were(name):
    x = inputs(name)
    kept = {n: y.clone() for n, y in x.items()}
    results(RULES[name].chunked, x)
    assert all(torch.equal(x[n], kept[n]) for n in x)


@pytest.mark.parametrize("name", RULES)
def test_a_compiled_rule_gives_the_same_results(name):
    x = {n: y for n, y in inputs(name, T=33).items()}
    compiled = torch.compile(RULES[name].chunked, backend="aot_eager", fullgraph=True)
    assert_close(results(compiled, x), results(RULES[name].chunked, x), 1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_runs_on_the_meta_device(name):
    x = {n: y.to("meta") for n, y in inputs(name, T=33).items()}
    o, state = RULES[name].chunked(**x)
    assert o.is_meta and o.shape == x["v"].shape and state.shape == x["initial_state"].shape


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler on this machine: g++")
def test_a_rule_compiled_to_machine_code_gives_the_same_results():
    x = inputs("kda", T=3, H=1, K=4, V=3)  # small: what takes time is the compiler
    compiled = torch.compile(kda.chunked, backend="inductor")
    assert_close(results(compiled, x, chunk_size=2), results(kda.recurrent, x), 1e-10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("name", RULES)
def test_a_gpu_gives_the_same_results(name):
    x = inputs(name, T=130)
    got = results(RULES[name].chunked, {n: y.cuda() for n, y in x.items()})
    assert_close({n: y.cpu() for n, y in got.items()}, results(RULES[name].recurrent, x), 1e-10)


@pytest.mark.parametrize("T", [70, 128])
def test_kda_agrees_with_the_public_implementation(T):
    """Reference: transformers' Kimi Linear, the PyTorch form, forward and backward."""
    from transformers.models.kimi_linear import modeling_kimi_linear as theirs

    x = {n: y.float() for n, y in inputs("kda", T=T, g="-0.5").items()}

    def public(q, k, v, g, beta, initial_state):
        return theirs.chunk_kimi_delta_attention(
            q, k, v, g, beta, initial_state=initial_state, output_final_state=True
        )

    expected = {n: y.double() for n, y in results(public, x, torch.float32).items()}
    assert_close(results(kda.chunked, x, torch.float32), expected, 1e-5)


@pytest.mark.parametrize("T", [70, 128])
def test_the_gated_delta_rule_agrees_with_the_public_implementation(T):
    """Reference: transformers' Qwen3-Next, the PyTorch form, forward and backward."""
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    x = {n: y.float() for n, y in inputs("gated_delta", T=T, g="-0.5").items()}

    def public(q, k, v, g, beta, initial_state):
        return theirs.torch_chunk_gated_delta_rule(
            q, k, v, g, beta, initial_state=initial_state, output_final_state=True
        )

    expected = {n: y.double() for n, y in results(public, x, torch.float32).items()}
    assert_close(results(gated_delta.chunked, x, torch.float32), expected, 1e-5)


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("name", RULES)
def test_any_layout_in_memory_gives_the_same_results(name, form):
    x = inputs(name, B=2, T=33)
    expected = getattr(RULES[name], form)(**x)
    turned = {n: y.mT.contiguous().mT for n, y in x.items()}
    for got, e in zip(getattr(RULES[name], form)(**turned), expected, strict=True):
        assert_close({"x": got}, {"x": e}, 1e-12)
    spread = {n: y[:1].expand_as(y) for n, y in x.items()}
    whole = getattr(RULES[name], form)(**{n: y.contiguous() for n, y in spread.items()})
    for got, e in zip(getattr(RULES[name], form)(**spread), whole, strict=True):
        assert_close({"x": got}, {"x": e}, 1e-12)


@pytest.mark.parametrize("through", [0, 1])
@pytest.mark.parametrize("name", RULES)
def test_a_gradient_by_one_input_through_one_result_is_the_recurrent_one(name, through):
    def gradient(form, x, wanted):
        x = {n: y.clone().requires_grad_(n == wanted) for n, y in x.items()}
        result = form(**x)[through]
        if not result.requires_grad:  # the state does not depend on q
            return torch.zeros(1)
        (d,) = torch.autograd.grad(result.square().sum(), x[wanted], allow_unused=True)
        return torch.zeros_like(x[wanted]) if d is None else d

    x = inputs(name, T=33)
    for wanted in x:
        e = gradient(RULES[name].recurrent, x, wanted)
        got = gradient(RULES[name].chunked, x, wanted)
        assert_close({wanted: got}, {wanted: e}, 1e-10, f"{name} through {through}")


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("name", RULES)
def test_the_final_state_is_a_tensor_of_its_own(name, form):
    x = inputs(name)
    before = x["initial_state"].clone()
    _, state = getattr(RULES[name], form)(**x)
    assert state.untyped_storage().nbytes() == state.numel() * 8  # and keeps nothing else alive
    state.fill_(7)
    assert torch.equal(x["initial_state"], before)


@pytest.mark.parametrize("name", RULES)
def test_a_gradient_of_a_gradient_is_right_or_refused(name):
    x = {n: y.requires_grad_() for n, y in inputs(name, T=5, K=3, V=2, g="-1").items()}

    def twice(form):
        loss = sum(y.sin().sum() for y in form(**x))
        (d,) = torch.autograd.grad(loss, x["k"], create_graph=True)
        return dict(
            zip("kv", torch.autograd.grad(d.square().sum(), [x["k"], x["v"]]), strict=True)
        )

    expected = twice(RULES[name].recurrent)
    if name == "linear":
        assert_close(twice(RULES[name].chunked), expected, 1e-10)
    else:
        with pytest.raises(NotImplementedError, match="only the recurrent form"):
            twice(RULES[name].chunked)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1", True])
@pytest.mark.parametrize("name", RULES)
def test_a_scale_that_is_no_finite_number_is_refused(name, scale):
    with pytest.raises(ValueError, match="scale: got"):
        RULES[name].chunked(**inputs(name, T=3), scale=scale)


@pytest.mark.parametrize("name", RULES)
def test_memory_grows_with_the_length_and_no_faster(name):
    def peak(T):
        x = {n: y.requires_grad_() for n, y in inputs(name, T=T, H=1, g="-1").items()}
        return peak_memory(lambda: sum(y.sum() for y in RULES[name].chunked(**x)).backward())

    assert peak(4096) <= 4.05 * peak(1024)


BAD = {
    "a key of another width": ("k", lambda x: x[..., :-1], "k: got"),
    "values of another length": ("v", lambda x: x[:, :-1], "v: got"),
    "a missing axis": ("q", lambda x: x[0], "q: got"),
    "no token at all": ("q", lambda x: x[:, :0], "q: got"),
    "nothing": ("k", lambda x: None, "k: got NoneType, needs a tensor"),
    "a list": ("q", lambda x: x.tolist(), "q: got list, needs a tensor"),
    "whole numbers": ("k", lambda x: x.long(), "k: got torch.int64"),
    "a state of another shape": ("initial_state", lambda x: x.mT, "initial_state: got"),
    "another device": ("v", lambda x: x.to("meta"), "v: got meta"),
}
BAD_BETA = {"negative": -0.1, "above 2": 2.1, "not a number": float("nan")}
BAD_GATE = {"growth": 0.1, "minus infinity": -float("inf"), "not a number": float("nan")}


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", RULES)
def test_a_misfit_is_refused_by_name(name, case, form):
    argument, spoil, message = BAD[case]
    x = inputs(name, T=3)
    with pytest.raises(ValueError, match=message):
        getattr(RULES[name], form)(**x | {argument: spoil(x[argument])})


@pytest.mark.parametrize("case", BAD_BETA)
@pytest.mark.parametrize("name", ["delta", "gated_delta", "kda"])
def test_a_write_strength_out_of_range_is_refused(name, case):
    x = inputs(name, T=3)
    x["beta"][0, 1, 0] = BAD_BETA[case]
    with pytest.raises(ValueError, match="beta: got values from"):
        RULES[name].chunked(**x)


@pytest.mark.parametrize("case", BAD_GATE)
@pytest.mark.parametrize("name", ["gated_delta", "kda"])
def test_a_gate_that_is_no_log_decay_is_refused(name, case):
    x = inputs(name, T=3)
    x["g"].view(-1)[2] = BAD_GATE[case]
    with pytest.raises(ValueError, match="g: got values from"):
        RULES[name].chunked(**x)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
@pytest.mark.parametrize("name", RULES)
def test_a_chunk_size_that_is_no_count_is_refused(name, size):
    with pytest.raises(ValueError, match="chunk_size: got"):
        RULES[name].chunked(**inputs(name, T=3), chunk_size=size)


def test_every_rule_offers_its_forms_with_one_signature():
    for name, rule in RULES.items():
        recurrent, chunked = (
            list(inspect.signature(f).parameters) for f in (rule.recurrent, rule.chunked)
        )
        assert chunked == [*recurrent, "chunk_size"], name
        tokens = recurrent[: recurrent.index("scale")]
        assert list(inspect.signature(rule.step).parameters) == [*tokens, "state", "scale"], (
            name
        )
