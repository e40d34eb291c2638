"""Frontends: custom operators for what transformers writes as a Python loop but a GPU runs as one kernel.

``foretell::selective_scan(u, delta, A, B, C, D?, z?, delta_bias?) -> (out, last_state)`` is the scan of Mamba-1
(Gu and Dao, 2023, algorithm 2) with the layout of ``mamba_ssm.selective_scan_fn``: u, delta, z and out are
[batch, channels, length], A is [channels, states], B and C are [batch, states, length], D and delta_bias are
[channels], last_state is [batch, channels, states]. As a loop over the tokens, its graph would grow with their number.
"""

from functools import cache
from typing import Any

from foretell.optional import require

SCHEMA = (
    "(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, Tensor? z=None, Tensor? delta_bias=None)"
    " -> (Tensor, Tensor)"
)


@cache
def _selective_scan() -> Any:
    """Register the custom operator once."""
    torch = require("torch", extra="hf")

    def never_run(*_: Any) -> Any:
        raise NotImplementedError("foretell::selective_scan exists only for tracing and has no kernel")

    def shapes(u: Any, _delta: Any, A: Any, *_: Any) -> Any:  # noqa: N803 - the names of the paper
        return torch.empty_like(u), u.new_empty((u.shape[0], A.shape[0], A.shape[1]))

    operator = torch.library.custom_op("foretell::selective_scan", never_run, mutates_args=(), schema=SCHEMA)
    operator.register_fake(shapes)
    return operator


def selective_scan(
    hidden_states: Any,
    dt: Any,
    A: Any,  # noqa: N803 - the names of the paper
    B: Any,  # noqa: N803
    C: Any,  # noqa: N803
    D: Any = None,  # noqa: N803
    z: Any = None,
    delta_bias: Any = None,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """Replace ``mamba_selective_scan`` of transformers; a softplus on ``dt`` is always included."""
    output, last_state = _selective_scan()(hidden_states, dt, A, B, C, D, z, delta_bias)
    return (output, last_state) if return_last_state else output
