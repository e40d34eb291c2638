"""Predictors: serving engines: how they put steps together, and what their hosts add to each step.

The rules are those of the engines' documentation: vLLM runs prompts in chunks beside requests that generate, SGLang
runs prompts in steps of their own, TensorRT-LLM mixes whole prompts and keeps memory for the longest answer. The times
are fitted to measured rows of models that judge nothing (docs/lab/0037-serving.md).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from foretell.errors import ModelError
from foretell.predictors.fitted_files import read_shipped

FILE = "llm-engines.json"
PAGED, EAGER = "paged", "eager"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's rules and its host's times.

    ``mixes``: prompts share steps with answers. ``chunks``: long prompts are cut. ``reserves``: a request starts when
    the cache has room for its whole answer. ``of_free``: the fraction of memory is that of what weights leave.
    ``wait_steps``: prompts wait up to so many steps until they fill ``wait_share`` of the budget (TensorRT-LLM's
    batch_wait_timeout_iters and batch_wait_max_tokens_ratio; 0 by default).

    ``step_us`` is added to every step, and ``request_us`` for each request in it. A request waits ``arrival_ms`` and
    ``arrival_steps`` steps beside the queue before its first token comes back: HTTP, tokenizer, the step that runs
    already and those that are scheduled ahead. Prompts of mixtures take ``mixture_prompts`` times what they take here:
    an engine routes them less evenly, and by other kernels, than the tables that the experts' times come from; and they
    wait ``expert_layer_ms`` for each layer of experts where the host launches a prompt's kernels one by one.
    """

    name: str
    framework: str | None
    mixes: bool = True
    chunks: bool = True
    reserves: bool = False
    of_free: bool = False
    token_budget: int = 8192
    wait_steps: int = 0
    wait_share: float = 1.0
    step_us: float = 0.0
    request_us: float = 0.0
    arrival_ms: float = 0.0
    arrival_steps: float = 0.0
    mixture_prompts: float = 1.0
    expert_layer_ms: float = 0.0


RULES = {
    PAGED: Engine(PAGED, None),
    "vllm": Engine("vllm", "vllm"),
    "sglang": Engine("sglang", "sglang", mixes=False),
    "trtllm": Engine("trtllm", "trtllm", chunks=False, reserves=True, of_free=True),
}
ENGINES = (*RULES, EAGER)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The fitted times by engine, and how far off (in logarithms) nine in ten of the rows that taught are."""

    times: Mapping[str, Mapping[str, float]]
    spread: Mapping[str, float]

    def engine(self, name: str) -> Engine:
        """An engine with its fitted times."""
        times: dict[str, Any] = dict(self.times[name])
        return replace(RULES[name], **times)

    def to_bytes(self) -> bytes:
        """As the shipped file has it."""
        return (json.dumps({"times": self.times, "spread": self.spread}, indent=1) + "\n").encode()


@lru_cache(maxsize=1)
def shipped_engines() -> Fitted:
    """The times that ship with foretell."""
    data = read_shipped(FILE)
    if data is None:
        raise ModelError(f"{FILE} is missing. Install foretell again, or fit it: python -m lab fit-llm TABLES")
    return Fitted(**json.loads(data))
