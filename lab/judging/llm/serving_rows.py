"""Lab: measured rows of served language models, and how they were measured.

aiconfigurator's table (NVIDIA, Apache-2.0) has two kinds of rows. Most are InferenceMAX's: ten requests a client, all
clients ask at the start, lengths are uniform between 0.8 and 1 of those in the name
(https://github.com/InferenceMAX/InferenceMAX, README: RANDOM_RANGE_RATIO 0.8, num-prompts 10 × concurrency, an infinite
request rate). Those whose id holds ``epnone`` are aiconfigurator's own; how they were measured is not said. They are
taken to be like the others, with lengths that vary by a tenth around those in the name: with equal lengths all requests
would end at the same time, again and again.

How a server was launched is in InferenceMAX's scripts (https://github.com/SemiAnalysisAI/InferenceX, benchmarks/: the
file of each model, GPU and engine): `launch_of` restates what matters. TensorRT-LLM lets prompts wait for others, 20
steps for Llama's 1,024 + 1,024 tokens on fewer than 8 GPUs, and 60 where replicas of the attention are balanced.

Where ``tp_size`` is the product of both expert sizes, both are the same GPUs, as the ids say (``tp8_ep8`` has 64): one
of them is taken. Rows that repeat another one's times are left out, and so are disaggregated ones.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.devices import find_device
from foretell.errors import DataError
from foretell.optional import require
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.closed_loop import Request
from foretell.predictors.llm.deployment import MEMORY_FRACTION, Deployment

SERVING = "h200_sxm_serving.parquet"
# models by the name that fixes their half; checkpoints of one architecture are one model
MODELS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "zhipuai/GLM-5": "glm-5",
}


def teaching_models() -> tuple[str, ...]:
    """The half of the models that may be fitted to: the first by the SHA-256 of their names."""
    ordered = sorted(set(MODELS.values()), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return tuple(ordered[: (len(ordered) + 1) // 2])


@dataclass(frozen=True)
class Launch:
    """The settings of a server and its client that differ from row to row."""

    token_budget: int = 8192
    fraction: float = MEMORY_FRACTION
    wait_steps: int = 0
    wait_share: float = 1.0
    requests_per_client: int = 10


def launch_of(model: str, engine: str, place: Deployment, prompt: int, answer: int, clients: int) -> Launch:
    """How a row's server was launched, as InferenceMAX's scripts have it; the engine's defaults where they say nothing.

    Versions of a script differ; where the date of a row does not tell which one ran, the first is taken.
    """
    both = (model, engine)
    if both == ("llama-3.1-70b", "trtllm"):
        whole = prompt + answer + 200  # --max_num_tokens $MAX_MODEL_LEN
        is_waiting = prompt == answer == 1024 and place.gpus < 8
        return Launch(whole, wait_steps=20 if is_waiting else 0, wait_share=0.9)
    if both == ("deepseek-v3", "trtllm"):
        budget = (clients + prompt + 127) // 64 * 64
        return Launch(budget, 0.75, wait_steps=60 if place.data > 1 else 0)
    return {
        ("gpt-oss-120b", "trtllm"): Launch(20_000, 0.85),
        ("kimi-k2.5", "vllm"): Launch(fraction=0.95),
        ("minimax-m2.5", "vllm"): Launch(fraction=0.95),
        ("deepseek-v3", "sglang"): Launch(32_768, 0.82),
        ("qwen3.5-397b-a17b", "sglang"): Launch(16_384, 0.8),
        ("glm-5", "sglang"): Launch(fraction=0.85, requests_per_client=5),
    }.get(both, Launch())


@dataclass(frozen=True)
class ServedRow:
    """One measured row."""

    id: str
    model: str
    engine: str
    deployment: Deployment
    prompt: int
    answer: int
    clients: int
    varied: bool
    ttft_ms: float
    tpot_ms: float
    launch: Launch = Launch()

    @property
    def parallelism(self) -> str:
        """Such as ``tp8`` or ``tp1 dp8 ep8``."""
        place = self.deployment
        sizes = (("tp", place.tensor), ("dp", place.data), ("ep", place.expert))
        return " ".join(f"{name}{size}" for name, size in sizes if size > 1 or name == "tp")

    @property
    def tokens_per_s(self) -> float:
        """By Little's law: the row has no throughput."""
        return self.rate(self.ttft_ms, self.tpot_ms)

    def rate(self, ttft_ms: float, tpot_ms: float) -> float:
        """Tokens a second that these times mean."""
        share = 0.9 if self.varied else 1.0
        answer = self.answer * share
        return self.clients * answer / (ttft_ms + (answer - 1) * tpot_ms)

    def requests(self) -> list[Request]:
        """The requests of the run, in their order."""
        count = self.launch.requests_per_client * self.clients
        random = np.random.default_rng(0)
        least, most = (0.8, 1.0) if self.varied else (0.9, 1.1)
        prompts, answers = (
            random.integers(int(least * tokens), int(most * tokens) + 1, count) for tokens in (self.prompt, self.answer)
        )
        return [Request(int(prompt), int(answer)) for prompt, answer in zip(prompts, answers, strict=True)]


def read_serving(folder: Path) -> list[ServedRow]:
    """All rows of the table that are aggregated and not repeated."""
    file = folder / SERVING
    if not file.is_file():
        raise DataError(f"There is no {SERVING} in {folder}. Give the folder aiconfigurator of the public data.")
    parquet = require("pyarrow.parquet", extra="train", purpose="Reading tables of served models")
    rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    seen: set[tuple[object, ...]] = set()
    kept = []
    for row in rows:
        key = (MODELS[row["model_path"]], f"{row['silicon_ttft_ms']:.4g}", f"{row['silicon_tpot_ms']:.4g}")
        if row["mode"] != "agg" or key in seen:
            continue
        seen.add(key)
        kept.append(served_row(row))
    return kept


def served_row(row: dict[str, Any]) -> ServedRow:
    """A row of the table."""
    architecture = load_architecture(row["model_path"])
    tensor, data, expert = _division(row)
    found = re.search(r"_c(\d+)", row["id"])
    assert found is not None, row["id"]
    model, engine, clients = MODELS[row["model_path"]], row["backend"], int(found.group(1))
    place = Deployment(
        architecture, find_device("h200"), weights=_weights(row, architecture.stored), kv_bytes=_kv_bytes(row),
        tensor=tensor, data=data, expert=expert,
    )  # fmt: skip
    varied = "epnone" not in row["id"]
    return ServedRow(
        id=row["id"],
        model=model,
        engine=engine,
        deployment=place,
        prompt=row["isl"],
        answer=row["osl"],
        clients=clients,
        varied=varied,
        ttft_ms=row["silicon_ttft_ms"],
        tpot_ms=row["silicon_tpot_ms"],
        launch=launch_of(model, engine, place, row["isl"], row["osl"], clients) if varied else Launch(),
    )


def _division(row: dict[str, Any]) -> tuple[int, int, int]:
    tensor, data = int(row["tp_size"]), int(row["attention_dp_size"] or 1)
    inner, expert = int(row["moe_tp_size"]), int(row["moe_ep_size"])
    if max(tensor, data) == inner * expert > inner > 1 and expert > 1:  # written twice: tp8_ep8 is 8 GPUs
        tensor, data = min(tensor, inner), min(data, inner)
        return tensor, data, expert
    if expert == 1 and inner > tensor:  # replicas of the attention that share the experts
        return tensor, inner // tensor, inner
    return tensor, data, expert


def _weights(row: dict[str, Any], stored: str) -> str:
    return stored if stored != "bf16" else ("fp8_block" if row["moe_quant_mode"] == "fp8_block" else "fp8")


def _kv_bytes(row: dict[str, Any]) -> int:
    """As the scripts say: fp8 for Llama, Qwen3.5, and DeepSeek under TensorRT-LLM; else as the model computes."""
    by_engine = row["backend"] == "trtllm" and row["model_path"] != "openai/gpt-oss-120b"
    return 1 if by_engine or row["model_path"] in _FP8_CACHE else 2


_FP8_CACHE: Sequence[str] = (
    "nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3.5-397B-A17B",
)  # fmt: skip
