"""One small training loop: a progress bar, a seed, and checkpoints that resume to the bit."""

import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.data import batches, fingerprint, token_row
from llmcourse.ops.common import compute_dtype, require, require_count, require_number
from llmcourse.progress import bar as progress_bar

Ids = Sequence[int] | Tensor


class Source(Protocol):
    """An endless iterator of batches, as `data.mqar_batches` makes them.

    Its repr tells it from other sources: a checkpoint is not continued on another one.
    """

    state: int  # the number of the next batch; setting it goes there

    def __next__(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, int64 [B, T]; a target of -100 is not scored."""


@dataclass(frozen=True)
class TrainConfig:
    """What decides the result of a run, together with the model, its start and the text.

    steps: updates of the weights. batch_size: sequences in one. context: tokens in a sequence
        (a `Source` has batches of its own size, and does not look at these two).
    learning_rate: the highest; rises over `warmup` steps, then falls along a cosine to a tenth.
    weight_decay: of matrices; vectors (biases, norms) are never decayed.
    clip: the largest norm of the gradient, taken over all parameters.
    seed: of the batches cut from a text and of whatever is random inside the model.
    evaluate_every: steps between losses on the validation text; None: only at the end.
    """

    steps: int
    batch_size: int = 16
    context: int = 128
    learning_rate: float = 1e-3
    warmup: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    evaluate_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "context"):
            require_count(name, getattr(self, name))
        require_count("warmup", self.warmup, least=0)
        require_count("seed", self.seed, least=0)
        require(self.seed < 2**63, "seed", self.seed, "less than 2**63")
        if self.evaluate_every is not None:
            require_count("evaluate_every", self.evaluate_every)
        decay = self.weight_decay
        require_number("weight_decay", decay, lambda x: 0 <= x < math.inf, "0 or more, finite")
        rate = self.learning_rate
        require_number("learning_rate", rate, lambda x: 0 < x < math.inf, "more than 0, finite")
        require_number("clip", self.clip, lambda x: x > 0, "more than 0")


@dataclass
class History:
    """What happened: losses in nats per token.

    losses: of the batch at each of `steps` (1, 2, ...), before the update.
    validation_losses: (step, loss) after that step's update.
    seconds: spent, over all parts of an interrupted run.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    validation_losses: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0


def train(
    model: nn.Module,
    source: Ids | Source,
    config: TrainConfig,
    *,
    validation_ids: Ids | None = None,
    checkpoint: str | Path | None = None,
    save_every: int = 200,
    until: int | None = None,
    progress: bool = True,
) -> History:
    """Train a language model to predict the next token (AdamW, Loshchilov and Hutter 2019).

    model: called as `model(ids [B, T]) -> logits [B, T, V]`; changed in place.
    source: a text, one long row of tokens, or batches of a task; these begin at number 0.
    validation_ids: another text, one long row of tokens.
    checkpoint: a file to save to every `save_every` steps, when interrupted, and at the end.
        If it is there, the run goes on from it as if it had never stopped: on the CPU, with
        the same versions and number of threads, to the bit.
        Its folder is made; that it can be written is tried before the first step.
    until: stop after this many steps of the run, to go on another day.
    progress: a bar on stdout with the loss and the time left.
    Raises ValueError for a checkpoint that is damaged or of another run, saying what differs;
    the model is then as it was.
    """
    require_count("save_every", save_every)
    if until is not None:
        require_count("until", until, least=0)
    if validation_ids is not None:
        validation_ids = _at_least_two(validation_ids)
    run = _Run(model, config, source)
    path = None if checkpoint is None else _writable(Path(checkpoint))
    stop = config.steps if until is None else min(until, config.steps)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        if path is not None and path.exists():
            run.load(path)
        bar = progress_bar(config.steps, what="training", start=run.step, show=progress)
        with _at_step_ends() as interrupted, bar:
            while run.step < stop:
                run.advance(validation_ids)
                bar.set_postfix_str(f"loss {run.history.losses[-1]:.3f}", refresh=False)
                bar.update()
                at_end = run.step == stop or interrupted()
                if path is not None and (at_end or run.step % save_every == 0):
                    run.save(path)
                if interrupted():
                    raise KeyboardInterrupt
    return run.history


@torch.no_grad()
def evaluate(model: nn.Module, ids: Ids, *, context: int, batch_size: int = 16) -> float:
    """The mean loss in nats per token over a whole text.

    The text is cut into pieces of `context` tokens, each read from its own beginning; every
    token but the very first is predicted exactly once.
    """
    text = _at_least_two(ids).to(_device(model))
    require_count("context", context)
    require_count("batch_size", batch_size)
    x, y = text[:-1], text[1:]
    whole = len(x) // context * context
    pieces = [
        *zip(
            x[:whole].view(-1, context).split(batch_size),
            y[:whole].view(-1, context).split(batch_size),
            strict=True,
        ),
        (x[None, whole:], y[None, whole:]),
    ]
    with _mode(model, training=False):
        total = sum(_loss(model, x, y, "sum").item() for x, y in pieces if x.numel())
    return total / len(y)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of update number `step`, from 0: a straight rise, then half a cosine."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    part = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * part)))


def optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that pulls matrices towards zero and leaves vectors alone."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in parameters if p.dim() >= 2],
            "weight_decay": config.weight_decay,
        },
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))


class _Run:
    """A model in training: everything that a checkpoint holds."""

    def __init__(self, model: nn.Module, config: TrainConfig, source: Ids | Source) -> None:
        require(
            any(p.requires_grad for p in model.parameters()),
            "model", type(model).__name__, "parameters that can be trained",
        )  # fmt: skip
        self.model, self.config = model, config
        self.batches, data = _batches(source, config)
        self.optimizer = optimizer(model, config)
        self.history = History()
        self.identity = {
            "training": asdict(config),
            "model": _describe(model),
            **data,
        }

    @property
    def step(self) -> int:
        return len(self.history.steps)

    def advance(self, validation_ids: Ids | None) -> None:
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step)
        device = _device(self.model)
        with _mode(self.model, training=True):
            x, y = next(self.batches)
            loss = _loss(self.model, x.to(device), y.to(device))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizer.step()
        self.history.losses.append(loss.item())
        self.history.steps.append(self.step + 1)
        if validation_ids is not None and self._is_time_to_evaluate():
            size = {"context": self.config.context, "batch_size": self.config.batch_size}
            validation = evaluate(self.model, validation_ids, **size)
            self.history.validation_losses.append((self.step, validation))
        self.history.seconds += time.perf_counter() - start

    def _is_time_to_evaluate(self) -> bool:
        every = self.config.evaluate_every or self.config.steps
        return self.step % every == 0 or self.step == self.config.steps

    def save(self, path: Path) -> None:
        """All or nothing: a crash while writing leaves the file that was there."""
        content = {
            "identity": self.identity,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": asdict(self.history),
            "random": torch.get_rng_state(),
        }
        part = path.with_name(f"{path.name}.part-{os.getpid()}")
        try:
            with open(part, "wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def load(self, path: Path) -> None:
        content = _read(path)
        differs = [
            f"{what}.{name}: {theirs.get(name)!r} there, {ours.get(name)!r} here"
            for what, ours in self.identity.items()
            for theirs in [_dict(_dict(content["identity"]).get(what))]
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        ]
        if differs:
            raise ValueError(
                f"checkpoint: {path} is from another run; move it away, or give another path:"
                + "".join(f"\n  {line}" for line in differs)
            )
        try:
            history = _history(content["history"])
            torch.set_rng_state(content["random"])
            self.optimizer.load_state_dict(content["optimizer"])
            self.model.load_state_dict(content["model"])  # last: the model is the caller's
        except Exception as error:  # whatever PyTorch makes of other content
            raise _damaged(path, error) from error
        self.history = history
        self.batches.state = self.step


def _batches(source: Any, config: TrainConfig) -> tuple[Source, dict[str, dict[str, Any]]]:
    """The batches of a run from number 0, and what tells them from those of another run."""
    if hasattr(source, "__next__"):
        require(hasattr(source, "state"), "source", type(source).__name__, "a state to set")
        source.state = 0
        return source, {"source": {"batches": repr(source)}}
    ids = token_row(source)
    size = {"batch_size": config.batch_size, "context": config.context}
    text = {"fingerprint": fingerprint(ids.numpy().tobytes()), "tokens": len(ids)}
    return batches(ids, **size, seed=config.seed), {"text": text}


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"checkpoint: {path} is truncated or no checkpoint; move it away to start again "
        f"({type(error).__name__})"
    )


def _writable(path: Path) -> Path:
    """The path, after a file has been written and removed beside it: not found out too late."""
    require(not path.is_dir(), "checkpoint", f"the folder {path}", "the path of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        where = f"{path.parent} cannot be written ({error.strerror})"
        raise ValueError(f"checkpoint: {where}; give a path in a folder of yours") from error


def _at_least_two(ids: Ids) -> Tensor:
    row = token_row(ids)
    require(len(row) >= 2, "ids", f"{len(row)} tokens", "at least 2: one predicts the next")
    return row


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        keys = set(content)
    except Exception as error:  # zip, pickle and torch each have their own
        raise _damaged(path, error) from error
    needed = {"identity", "model", "optimizer", "history", "random"}
    require(
        needed <= keys, "checkpoint", f"{path} without {sorted(needed - keys)}", "all parts"
    )
    return content


def _history(content: dict[str, Any]) -> History:
    history = History(**content)
    if history.steps != [*range(1, len(history.losses) + 1)]:
        raise ValueError("steps and losses that do not fit")
    return history


def _dict(x: Any) -> dict[str, Any]:
    return x if isinstance(x, dict) else {}


def _describe(model: nn.Module) -> dict[str, Any]:
    """Enough to tell two models apart: the configuration, names, shapes and dtypes."""
    weights = {n: f"{list(p.shape)} {p.dtype}" for n, p in model.named_parameters()}
    return {"config": repr(getattr(model, "config", type(model).__name__))} | weights


def _loss(model: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    logits = model(x).flatten(0, 1)  # [B T, V]
    logits = logits.to(compute_dtype(logits))
    return F.cross_entropy(logits, y.flatten(), reduction=reduction)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def _mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


@contextmanager
def _at_step_ends() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C (the first one) back until the step is complete, so that it can be saved."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
