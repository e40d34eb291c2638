"""Lab: Splitwise's table (Patel et al., ISCA 2024): Llama-2-70B in fp16 on A100 and H100 under vLLM of 2023.

That vLLM had no CUDA graphs: its host launched every kernel. A token of Llama-2-70B takes as long on 8 GPUs as on 4,
which no kernel explains, so a step takes as long as the slower of the GPUs and the host. What a launch takes on each
machine is told by the table's other model, BLOOM-176B, which judges nothing; rows with a power cap are left out.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.devices import find_device
from foretell.optional import require
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.deployment import Deployment
from foretell.predictors.llm.engines import Fitted
from foretell.predictors.llm.kernels import Kernels
from foretell.predictors.llm.steps import Chunk, Steps
from foretell.training.judging.table import Cell, Comparison
from foretell.units import KILO

SHARES = frozenset({"prompt", "token", "prompt by kernels", "token by kernels", "TTFT bias", "TPOT bias"})
_GPUS = {"a100-80gb": "a100-sxm-80gb", "h100-80gb": "h100-sxm"}
# kernels of a layer in vLLM 0.2: norms, products, rotary embedding, writing the cache, attention, activation, exchanges
# (Llama 12: norms fused with additions; BLOOM 13: no rotary embedding, two additions); layers of the published models
_LAUNCHES = {"llama2-70b": 12 * 80, "bloom-176b": 13 * 70}
_JUDGED, _TEACHING = "llama2-70b", "bloom-176b"


@dataclass(frozen=True)
class Setting:
    """What was run: a GPU of the table, how many, and the sizes of prompts, batch and answer."""

    gpu: str
    tensor: int
    prompt: int
    batch: int
    answer: int


def read_times(file: Path, model: str) -> dict[Setting, tuple[float, float]]:
    """The mean times of a prompt and of a token, in ms, of each setting of a model."""
    parquet = require("pyarrow.parquet", extra="train", purpose="Reading Splitwise's table")
    rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    times: dict[Setting, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["model"] == model and row["hardware"] in _GPUS:
            sizes = (int(row[name]) for name in ("tensor_parallel", "prompt_size", "batch_size", "token_size"))
            times[Setting(row["hardware"], *sizes)].append((row["prompt_time"], row["token_time"]))
    return {setting: tuple(np.mean(own, axis=0).tolist()) for setting, own in times.items()}


def launch_ms(times: dict[Setting, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """What a launch takes on the machine of each GPU, in a prompt and in a token: by the quickest rows of BLOOM."""
    return {
        gpu: tuple(  # type: ignore[misc]
            min(own[at] for setting, own in times.items() if setting.gpu == gpu) / _LAUNCHES[_TEACHING] for at in (0, 1)
        )
        for gpu in _GPUS
    }


def judge_splitwise(file: Path, kernels: Kernels, fitted: Fitted) -> Comparison:
    """Prompts and tokens of Llama-2-70B: by kernels and launches, and by kernels alone; by GPU and parallelism."""
    engine = fitted.engine("vllm")
    launches = launch_ms(read_times(file, _TEACHING))
    known: dict[tuple[str, int], Steps] = {}
    errors: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for setting, truth in read_times(file, _JUDGED).items():
        key = (setting.gpu, setting.tensor)
        if key not in known:
            model, device = load_architecture("meta-llama/Llama-2-70b-hf"), find_device(_GPUS[setting.gpu])
            known[key] = Steps(Deployment(model, device, tensor=setting.tensor), kernels, "vllm")
        steps, context = known[key], setting.prompt + setting.answer / 2
        token = (steps.step_us(setting.batch, context) + engine.step_us + engine.request_us * setting.batch) / KILO
        prompt = (steps.step_us(0, 0, [Chunk(setting.prompt)] * setting.batch) + engine.step_us) / KILO
        host = [own * _LAUNCHES[_JUDGED] for own in launches[setting.gpu]]
        both = [max(device, own) for device, own in zip((prompt, token), host, strict=True)]
        row = tuple(own / true - 1 for own, true in zip((*both, prompt, token), (*truth, *truth), strict=True))
        for name in (setting.gpu, f"{setting.gpu}, tp{setting.tensor}"):
            errors[name].append(row)
    rows: dict[str, dict[str, Cell]] = {}
    for name, own in sorted(errors.items()):
        signed = np.array(own)
        median = np.median(np.abs(signed), axis=0)
        rows[name] = {
            "count": len(signed), "prompt": float(median[0]), "token": float(median[1]),
            "TTFT bias": float(np.median(signed[:, 0])), "TPOT bias": float(np.median(signed[:, 1])),
            "prompt by kernels": float(median[2]), "token by kernels": float(median[3]),
        }  # fmt: skip
    title = "Splitwise: Llama-2-70B, fp16, vLLM of 2023, whose host launches every kernel (BLOOM-176B tells how fast)"
    return Comparison(title, rows, ranked=False, shares=SHARES, head="GPU")
