"""The models: a frozen configuration, the network, and the public checkpoints' layout."""

from llmcourse.models.checkpoint import CheckpointError
from llmcourse.models.gpt2 import GPT2, GPT2Config
from llmcourse.models.one_memory import OneMemory, OneMemoryConfig

__all__ = ["GPT2", "CheckpointError", "GPT2Config", "OneMemory", "OneMemoryConfig"]
