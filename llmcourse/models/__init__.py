"""The models: a frozen configuration, the network, and the public checkpoints' layout."""

from llmcourse.models.checkpoint import CheckpointError
from llmcourse.models.gpt2 import GPT2, GPT2Config
from llmcourse.models.kimi_k3 import KimiK3, KimiK3Config
from llmcourse.models.kimi_linear import KimiLinear, KimiLinearConfig
from llmcourse.models.one_memory import OneMemory, OneMemoryConfig

__all__ = [
    "GPT2",
    "CheckpointError",
    "GPT2Config",
    "KimiK3",
    "KimiK3Config",
    "KimiLinear",
    "KimiLinearConfig",
    "OneMemory",
    "OneMemoryConfig",
]
