"""Random inputs that everyone can repeat, but for the hidden ones of a course."""

import hashlib
import os

import numpy as np
import torch

from llmcourse.checks.report import is_hidden


class Rng:
    """Random tensors that depend on the words alone; in a hidden check on the salt too.

    The seed has 256 bits, so that nobody finds a hidden input by trying seeds.
    """

    def __init__(self, *words: str | int) -> None:
        salt = os.environ.get("LLMCOURSE_SALT", "") if is_hidden() else ""
        digest = hashlib.sha256("|".join(map(str, (*words, salt))).encode()).digest()
        self.numbers = np.random.RandomState(np.frombuffer(digest, "<u4"))

    def normal(
        self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Normal numbers with mean 0; drawn in float64, so that dtypes share their values."""
        draw = torch.as_tensor(self.numbers.standard_normal(shape), dtype=torch.float64)
        return (std * draw).to(dtype)

    def uniform(
        self,
        *shape: int,
        low: float = 0.0,
        high: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """Uniform numbers in [low, high), the bounds rounded to dtype."""
        draw = torch.as_tensor(self.numbers.random_sample(shape), dtype=torch.float64)
        return (low + (high - low) * draw).to(dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Uniform int64 in [low, high)."""
        return torch.as_tensor(self.numbers.randint(low, high, shape, dtype=np.int64))


def rng(*words: str | int) -> Rng:
    """A generator named by words: `rng("02_gpt2", "gelu", 1)`.

    In `checks.hidden()` the course's salt (environment variable LLMCOURSE_SALT, set by
    nbgrader_config.py; empty when unset) is mixed in, so that nobody can work out the inputs;
    those of visible checks are the same for everyone.
    """
    return Rng(*words)
