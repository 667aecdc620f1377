"""The training loop: it learns, it repeats itself exactly, it survives being stopped."""

import copy
import math
import os
import signal
from dataclasses import replace
from textwrap import dedent

import nbformat
import pytest
import torch
import torch.nn.functional as F
from nbclient import NotebookClient

from llmcourse import train as training
from llmcourse.models import GPT2, GPT2Config
from llmcourse.train import TrainConfig, evaluate, learning_rate, train

CONFIG = GPT2Config(vocab_size=7, context_length=16, width=16, num_layers=1, num_heads=2)
RUN = TrainConfig(20, batch_size=4, context=8, learning_rate=0.01, warmup=4, evaluate_every=6)
IDS = torch.arange(300) % 7
OTHER = torch.arange(40) % 5


class Noisy(torch.nn.Module):
    """A model that throws dice, as dropout does."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop, self.config = GPT2(CONFIG), torch.nn.Dropout(0.1), CONFIG

    def forward(self, ids):
        return self.drop(self.inner(ids))


def fresh(kind=GPT2, seed=1):
    torch.manual_seed(seed)
    return kind(CONFIG) if kind is GPT2 else kind()


def run(model, config=RUN, ids=IDS, **options):
    return train(model, ids, config, validation_ids=OTHER, **({"progress": False} | options))


def same(a, b):
    """Bitwise, and the history but for the clock."""
    (model_a, history_a), (model_b, history_b) = a, b
    a, b = model_a.state_dict(), model_b.state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert replace(history_a, seconds=0) == replace(history_b, seconds=0)
    return True


@pytest.fixture(scope="module")
def straight():
    """The run that nobody interrupted, for each kind of model."""
    results = {}
    for kind in (GPT2, Noisy):
        model = fresh(kind)
        results[kind] = model, run(model)
    return results


def test_it_learns_what_can_be_learnt():
    model = fresh()
    history = train(model, IDS, replace(RUN, steps=60), progress=False)
    assert history.losses[0] == pytest.approx(math.log(7), abs=0.1) and history.losses[-1] < 0.5
    assert history.steps == list(range(1, 61)) and history.seconds > 0


def test_the_same_seed_gives_the_same_run_and_another_does_not(straight):
    model = fresh()
    torch.manual_seed(99)  # what happened before does not matter
    assert same((model, run(model)), straight[GPT2])
    other = run(fresh(), replace(RUN, seed=1))
    assert other.losses != straight[GPT2][1].losses


def test_the_callers_randomness_is_left_alone():
    model = fresh(Noisy)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(model, replace(RUN, steps=1))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind", [GPT2, Noisy])
def test_eight_steps_and_twelve_are_twenty_to_the_bit(tmp_path, straight, kind):
    path = tmp_path / "run.pt"
    first = run(fresh(kind), checkpoint=path, until=8)
    assert first.steps == list(range(1, 9))
    model = fresh(kind, seed=2)  # another start: everything comes from the file
    assert same((model, run(model, checkpoint=path)), straight[kind])
    assert [step for step, _ in straight[kind][1].validation_losses] == [6, 12, 18, 20]


def test_a_finished_run_is_read_back(tmp_path, straight):
    path = tmp_path / "run.pt"
    run(fresh(), checkpoint=path)
    before = path.stat().st_mtime_ns
    model = fresh(seed=2)
    assert same((model, run(model, checkpoint=path)), straight[GPT2])
    assert path.stat().st_mtime_ns == before


def interrupt_at(model, call, how):
    """Call `how` in the middle of a forward pass: batches read so far = call."""
    calls = []

    def hook(*_):
        calls.append(0)
        if len(calls) == call and model.training:
            how()

    return model.register_forward_hook(hook)


def test_control_c_finishes_the_step_and_saves_it(tmp_path, straight):
    path, model = tmp_path / "run.pt", fresh()
    interrupt_at(model, 5, lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(model, checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(torch.load(path)["history"]["steps"]) == 5
    model = fresh(seed=2)
    assert same((model, run(model, checkpoint=path)), straight[GPT2])


def test_control_c_twice_does_not_wait():
    model, reached = fresh(), []

    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        reached.append("after")

    interrupt_at(model, 2, twice)
    with pytest.raises(KeyboardInterrupt):
        run(model)
    assert not reached


def test_a_crash_goes_on_from_the_last_save(tmp_path, straight):
    path, model = tmp_path / "run.pt", fresh()

    def crash():
        raise KeyboardInterrupt

    interrupt_at(model, 5, crash)
    with pytest.raises(KeyboardInterrupt):
        run(model, checkpoint=path, save_every=2)
    assert len(torch.load(path)["history"]["steps"]) == 4
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]
    model = fresh(seed=2)
    assert same((model, run(model, checkpoint=path)), straight[GPT2])


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    run(fresh(), checkpoint=path, until=2)
    before = path.read_bytes()

    def full_disk(content, file):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="no space"):
        run(fresh(), checkpoint=path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"config": replace(RUN, learning_rate=0.02)},
            r"training.learning_rate: 0.01 there, 0.02",
        ),
        ({"ids": (IDS + 1) % 7}, r"text.fingerprint"),
        ({"ids": IDS[:200]}, r"text.tokens: 300 there, 200 here"),
        ({"model": GPT2(replace(CONFIG, width=8))}, r"model.config: .*width=16.*width=8"),
        ({"model": GPT2(CONFIG).double()}, r"float32' there, .*float64' here"),
        ({"model": GPT2(replace(CONFIG, norm_eps=1e-6))}, r"model.config: .*1e-05.*1e-06"),
    ],
)
def test_a_checkpoint_of_another_run_says_what_differs(tmp_path, change, words):
    path = tmp_path / "run.pt"
    run(fresh(), checkpoint=path, until=1)
    with pytest.raises(ValueError, match=rf"(?s)another run.*{words}"):
        run(**({"model": fresh(), "checkpoint": path} | change))


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
def test_a_truncated_checkpoint_says_so(tmp_path, cut):
    path = tmp_path / "run.pt"
    run(fresh(), checkpoint=path, until=1)
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        run(fresh(), checkpoint=path)


@pytest.mark.parametrize("part", ["identity", "model", "optimizer", "history", "random"])
def test_a_checkpoint_with_a_damaged_part_is_refused(tmp_path, part):
    path = tmp_path / "run.pt"
    run(fresh(), checkpoint=path, until=1)
    content = torch.load(path, weights_only=True)
    torch.save(content | {part: {"no": "such thing"}}, path)
    with pytest.raises(ValueError, match="checkpoint: "):
        run(fresh(), checkpoint=path)


@pytest.mark.parametrize(
    "damage",
    [
        {"optimizer": None},
        {"history": {"steps": 5}},
        {"history": {"steps": [1, 2], "losses": [1.0]}},
        {"random": torch.zeros(3)},
    ],
)
def test_a_damaged_checkpoint_leaves_the_model_as_it_was(tmp_path, damage):
    path, model = tmp_path / "run.pt", fresh(seed=2)
    run(fresh(), checkpoint=path, until=1)
    torch.save(torch.load(path, weights_only=True) | damage, path)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="truncated or no checkpoint"):
        run(model, checkpoint=path)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_the_loss_of_a_model_in_float64_is_not_rounded():
    model, text = fresh().double(), OTHER[:17]
    exact = F.cross_entropy(model(text[None, :-1])[0], text[1:]).item()
    assert abs(evaluate(model, text, context=16) - exact) < 1e-12


def test_a_place_that_cannot_be_written_is_known_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    for path, words in [
        (tmp_path / "file" / "run.pt", "cannot be written"),
        (tmp_path, "folder"),
    ]:
        with pytest.raises(ValueError, match=f"checkpoint: .*{words}"):
            run(torch.nn.Linear(1, 1), checkpoint=path)  # cannot make a step


def test_the_folder_of_a_checkpoint_is_made(tmp_path):
    run(fresh(), checkpoint=tmp_path / "new" / "folder" / "run.pt", until=1)
    assert [f.name for f in (tmp_path / "new" / "folder").iterdir()] == ["run.pt"]


@pytest.mark.parametrize("ids", [[0.5] * 99, IDS.float(), "text", None, IDS.view(1, -1)])
def test_a_text_that_is_no_row_of_integers_is_refused(ids):
    """Fractions above all: cut off in silence, they would train on other tokens."""
    with pytest.raises(ValueError, match="ids: got"):
        run(fresh(), ids=ids)
    with pytest.raises(ValueError, match="ids: got"):
        train(fresh(), IDS, RUN, validation_ids=[0.5] * 99, progress=False)
    with pytest.raises(ValueError, match="ids: got"):
        evaluate(fresh(), ids, context=8)


@pytest.mark.parametrize("option", [{"save_every": 0}, {"until": -1}, {"until": 2.5}])
def test_impossible_options_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        run(fresh(), **option)


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="model: got GPT2, needs parameters"):
        run(fresh().requires_grad_(False))


@pytest.mark.parametrize("content", [{"weights": torch.zeros(1)}, [1, 2], "text"])
def test_another_kind_of_file_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "run.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match="checkpoint"):
        run(fresh(), checkpoint=path)


def test_the_rate_rises_then_falls_to_a_tenth():
    rates = [learning_rate(RUN, step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert rates[4] == pytest.approx(0.01) and rates[4:] == sorted(rates[4:], reverse=True)
    assert learning_rate(RUN, 20) == pytest.approx(0.001)
    assert learning_rate(RUN, 12) == pytest.approx(0.0055)  # half way down


def test_only_matrices_are_decayed():
    model = fresh()
    decayed, free = training.optimizer(model, RUN).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert {p.dim() for p in decayed["params"]} == {2} and {
        p.dim() for p in free["params"]
    } == {1}
    assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))


def test_gradients_are_clipped(monkeypatch):
    norms = []
    step = torch.optim.AdamW.step

    def watched(self):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(torch.nn.utils.get_total_norm(grads).item())
        return step(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    run(fresh(), replace(RUN, steps=2, clip=0.01))
    assert norms == pytest.approx([0.01] * 2, rel=1e-3)


@pytest.mark.parametrize(("length", "context"), [(40, 3), (40, 13), (9, 8), (5, 16), (2, 1)])
def test_evaluation_predicts_every_token_once(length, context):
    model, text, total = fresh(), OTHER[:length], 0.0
    for start in range(0, length - 1, context):
        end = min(start + context, length - 1)
        with torch.no_grad():
            logits = model(text[None, start:end])[0]
        total += F.cross_entropy(logits, text[start + 1 : end + 1], reduction="sum").item()
    found = evaluate(model, text, context=context, batch_size=2)
    assert found == pytest.approx(total / (length - 1), rel=1e-5)  # float32, summed otherwise


def test_evaluation_leaves_the_model_as_it_was():
    model = fresh(Noisy).train()
    assert evaluate(model, OTHER, context=8) == evaluate(model, OTHER, context=8)  # no dice
    assert model.training
    with pytest.raises(ValueError, match="ids: got 1 tokens"):
        evaluate(model, [3], context=8)


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"batch_size": 0}, {"context": 0}, {"learning_rate": 0.0}, {"clip": -1.0},
     {"warmup": -1}, {"weight_decay": -0.1}, {"seed": -1}, {"evaluate_every": 0},
     {"steps": 2.5}, {"steps": "3"}, {"steps": True}, {"context": 1.5}, {"seed": 2**70},
     {"learning_rate": math.inf}, {"learning_rate": "1"}, {"weight_decay": math.nan}],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(RUN, **wrong)


def test_the_bar_is_on_stdout_with_the_loss_and_the_time_left(capfd):
    run(fresh(), progress=True)
    out, err = capfd.readouterr()
    assert err == ""
    assert "20/20" in out and "loss " in out and "<" in out


def test_in_a_notebook_the_bar_is_one_line_that_changes():
    code = """
        from llmcourse.progress import bar
        with bar(3, what="steps") as b:
            for _ in range(3):
                b.update()
                b.refresh()
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(dedent(code))])
    NotebookClient(notebook, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data" and "3/3" in output.data["text/plain"]


def test_silence_when_asked(capfd):
    run(fresh())
    assert capfd.readouterr() == ("", "")


# Batches of a task


class Counting:
    """Batches that predict the token after next, with every other target left out."""

    def __init__(self, size=4, name="counting"):
        self.state, self.size, self.name = 0, size, name

    def __repr__(self):
        return f"Counting({self.name})"

    def __next__(self):
        start = torch.arange(self.size)[:, None] + self.state
        self.state += 1
        x = (start + torch.arange(8)) % 7
        y = (x + 2) % 7
        y[:, ::2] = -100
        return x, y


def task(model, source=None, **options):
    return train(model, source or Counting(), RUN, **({"progress": False} | options))


def test_a_task_is_learnt_from_the_targets_that_are_scored():
    model = fresh()
    history = train(model, Counting(), replace(RUN, steps=60), progress=False)
    assert history.losses[0] == pytest.approx(math.log(7), abs=0.1) and history.losses[-1] < 0.5
    x, y = next(Counting())
    with torch.no_grad():
        loss = F.cross_entropy(fresh()(x)[:, 1::2].flatten(0, 1), y[:, 1::2].flatten())
    assert history.losses[0] == pytest.approx(loss.item(), rel=1e-5)


def test_a_run_on_a_task_begins_at_batch_0_and_leaves_the_source_at_its_end():
    source = Counting()
    source.state = 3
    first = fresh()
    history = task(first, source)
    assert source.state == 20
    again = fresh()
    assert same((again, task(again)), (first, history))


def test_a_run_on_a_task_is_resumed_to_the_bit(tmp_path):
    path, whole = tmp_path / "run.pt", fresh()
    straight = task(whole)
    task(fresh(), checkpoint=path, until=8)
    model = fresh(seed=2)
    assert same((model, task(model, checkpoint=path)), (whole, straight))


def test_a_checkpoint_of_another_task_says_what_differs(tmp_path):
    path = tmp_path / "run.pt"
    task(fresh(), checkpoint=path, until=1)
    with pytest.raises(ValueError, match=r"(?s)another run.*source.batches: .*counting.*other"):
        task(fresh(), Counting(name="other"), checkpoint=path)
    with pytest.raises(ValueError, match=r"(?s)another run.*text.fingerprint: None there"):
        run(fresh(), checkpoint=path)


def test_a_task_can_be_followed_on_a_text():
    history = task(fresh(), validation_ids=OTHER)
    assert [step for step, _ in history.validation_losses] == [6, 12, 18, 20]


def test_an_iterator_that_cannot_be_set_is_refused():
    with pytest.raises(ValueError, match="source: got list_iterator, needs a state to set"):
        task(fresh(), iter([1]))
