"""What every count shares: parts by name, and refusing what cannot be counted."""

from typing import Any

from llmcourse.cache import ANY_LENGTH
from llmcourse.ops.common import require, require_count

Parts = dict[str, int]


def unknown(config: Any) -> TypeError:
    """The error for an object that no count is registered for."""
    name = type(config).__name__
    needs = "needs a configuration from llmcourse.models, or one that is registered"
    return TypeError(f"config is a {name}; nothing is registered for it in accounting: {needs}")


def require_context(config: Any, context: int, least: int) -> None:
    """Refuse anything but a whole number of tokens, from `least` to the model's own most."""
    require_count("context", context, least)
    limit = getattr(config, "context_length", ANY_LENGTH)
    needs = f"at most the model's context_length = {limit}"
    require(context <= limit, "context", f"{context} tokens", needs)
