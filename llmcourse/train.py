"""One small training loop: a progress bar, a seed, and checkpoints that resume to the bit."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmcourse.data import batches, fingerprint
from llmcourse.ops.common import require
from llmcourse.progress import bar as progress_bar

Ids = Sequence[int] | Tensor


@dataclass(frozen=True)
class TrainConfig:
    """What decides the result of a run, together with the model, its start and the text.

    steps: updates of the weights. batch_size: sequences in one. context: tokens in a sequence.
    learning_rate: the highest; rises over `warmup` steps, then falls along a cosine to a tenth.
    weight_decay: of matrices; vectors (biases, norms) are never decayed.
    clip: the largest norm of the gradient, taken over all parameters.
    seed: of the batches and of whatever is random inside the model.
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
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("warmup", "weight_decay", "seed"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("learning_rate", "clip"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        every = self.evaluate_every
        require(every is None or every >= 1, "evaluate_every", every, "None or at least 1")


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
    ids: Ids,
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
    ids, validation_ids: one long row of tokens each.
    checkpoint: a file to save to every `save_every` steps, when interrupted, and at the end.
        If it is there, the run goes on from it as if it had never stopped: on the CPU, with
        the same versions and number of threads, to the bit.
    until: stop after this many steps of the run, to go on another day.
    progress: a bar on stdout with the loss and the time left.
    Raises ValueError for a checkpoint that is damaged or of another run, saying what differs.
    """
    text = torch.as_tensor(ids, dtype=torch.int64)
    run = _Run(model, config, text)
    path = None if checkpoint is None else Path(checkpoint)
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
    text = torch.as_tensor(ids, dtype=torch.int64, device=_device(model))
    require(len(text) >= 2, "ids", f"{len(text)} tokens", "at least 2: one predicts the next")
    require(context >= 1, "context", context, "at least 1")
    require(batch_size >= 1, "batch_size", batch_size, "at least 1")
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

    def __init__(self, model: nn.Module, config: TrainConfig, ids: Tensor) -> None:
        self.model, self.config = model, config
        self.batches = batches(
            ids, batch_size=config.batch_size, context=config.context, seed=config.seed
        )
        self.optimizer = optimizer(model, config)
        self.history = History()
        self.identity = {
            "training": asdict(config),
            "model": _describe(model),
            "text": {"fingerprint": fingerprint(ids.numpy().tobytes()), "tokens": len(ids)},
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
            for theirs in [content["identity"].get(what, {})]
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        ]
        if differs:
            raise ValueError(
                f"checkpoint: {path} is from another run; move it away, or give another path:"
                + "".join(f"\n  {line}" for line in differs)
            )
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.history = History(**content["history"])
        self.batches.state = self.step
        torch.set_rng_state(content["random"])


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        keys = set(content)
    except Exception as error:  # zip, pickle and torch each have their own
        raise ValueError(
            f"checkpoint: {path} is truncated or no checkpoint; move it away to start again "
            f"({type(error).__name__})"
        ) from error
    needed = {"identity", "model", "optimizer", "history", "random"}
    require(
        needed <= keys, "checkpoint", f"{path} without {sorted(needed - keys)}", "all parts"
    )
    return content


def _describe(model: nn.Module) -> dict[str, Any]:
    """Enough to tell two models apart: the configuration, names and shapes."""
    shapes: dict[str, Any] = {n: list(p.shape) for n, p in model.named_parameters()}
    return {"config": repr(getattr(model, "config", type(model).__name__))} | shapes


def _loss(model: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    logits = model(x).flatten(0, 1)  # [B T, V]
    return F.cross_entropy(logits.float(), y.flatten(), reduction=reduction)


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
