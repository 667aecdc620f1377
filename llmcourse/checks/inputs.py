"""Random inputs that everyone can repeat, but for the hidden ones of a course."""

import hashlib
import os

import torch


class Rng:
    """Random tensors that depend on the words, and on the course's secret salt, alone."""

    def __init__(self, *words: str | int) -> None:
        text = "|".join(map(str, (*words, os.environ.get("LLMCOURSE_SALT", ""))))
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        self.generator = torch.Generator().manual_seed(seed)

    def normal(
        self, *shape: int, std: float = 1.0, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Normal numbers with mean 0; drawn in float64, so that dtypes share their values."""
        draw = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return (std * draw).to(dtype)

    def uniform(
        self,
        *shape: int,
        low: float = 0.0,
        high: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """Uniform numbers in [low, high), the bounds rounded to dtype."""
        draw = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return (low + (high - low) * draw).to(dtype)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Uniform int64 in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator)


def rng(*words: str | int) -> Rng:
    """A generator named by words: `rng("02_gpt2", "gelu", 1)`.

    The course's salt (environment variable LLMCOURSE_SALT, set by nbgrader_config.py; empty
    when unset) is mixed in, so that nobody can work out the inputs of a hidden check.
    """
    return Rng(*words)
