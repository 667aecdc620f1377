"""What a model costs, from its configuration alone: parameters, arithmetic, bytes.

Closed forms; nothing is allocated. A new kind of model registers what it has:

    @parameter_parts.register
    def _(config: NewConfig) -> dict[str, int]: ...

and in the same way its `cache_numbers` and `flops_parts`; `active_parameter_parts`,
`weight_numbers` and `published_precision` where it differs from others.
"""

from llmcourse.accounting.flops import (
    Reading,
    decode_flops,
    decode_flops_parts,
    flops_parts,
    prefill_flops,
    prefill_flops_parts,
)
from llmcourse.accounting.memory import (
    cache_bytes,
    cache_numbers,
    cache_parts,
    published_precision,
    weight_bytes,
    weight_numbers,
    weight_parts,
)
from llmcourse.accounting.numbers import (
    active_parameter_parts,
    active_parameters,
    parameter_parts,
    parameters,
)
from llmcourse.accounting.serving import Serving, serving

__all__ = [
    "Reading",
    "Serving",
    "active_parameter_parts",
    "active_parameters",
    "cache_bytes",
    "cache_numbers",
    "cache_parts",
    "decode_flops",
    "decode_flops_parts",
    "flops_parts",
    "parameter_parts",
    "parameters",
    "prefill_flops",
    "prefill_flops_parts",
    "published_precision",
    "serving",
    "weight_bytes",
    "weight_numbers",
    "weight_parts",
]
