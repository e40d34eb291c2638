"""Lab: the simulation of servers against measured rows, beside the closed loop of ``foretell llm``.

Both get the same requests, step times and engine times (fitted with the closed loop, `lab.judging.llm.serving`); only
how steps are made differs. Judged are rows of models that taught nothing, where the protocol is known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foretell.files import write_whole
from foretell.optional import require
from foretell.predictors.llm.deployment import MEMORY_FRACTION, Deployment
from foretell.predictors.llm.engines import RULES, Engine, shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from foretell.predictors.llm.serving import with_arrival
from foretell.predictors.llm.steps import Steps
from foretell.scheduling import serving
from foretell.scheduling.serving import closed_loop, simulate_serving
from foretell.training.judging.table import Cell, Comparison, page
from foretell.units import ms
from foretell.workflows.serving.simulate import deployment_of
from lab.judging.llm.serving import Judged, launched, simulate_rows
from lab.judging.llm.serving_rows import SERVING, ServedRow, read_serving, served_row, teaching_models

SIMULATION, LOOP = "foretell simulate", "foretell llm"
_SHARES = frozenset(("TTFT", "TPOT", "throughput", "TTFT apart", "TPOT apart", "TTFT bias", "TPOT bias"))


def follow_rows(rows: Sequence[ServedRow]) -> list[Judged]:
    """Every row, simulated as it was measured."""
    fitted, kernels = shipped_engines(), shipped_kernels()
    judged = []
    for row in rows:
        engine, place = launched(fitted.engine(row.engine), row), row.deployment
        requests = row.requests()
        longest = max(request.prompt + request.answer for request in requests)
        steps = Steps(place, kernels, engine.framework)
        deployment = deployment_of(place, engine, steps, longest, row.launch.fraction)
        judged.append(_followed(row, engine, deployment))
    return judged


def _followed(row: ServedRow, engine: Engine, servers: serving.Deployment) -> Judged:
    """The requests of a row through its servers."""
    lengths = ((request.prompt, request.answer) for request in row.requests())
    totals = simulate_serving(closed_loop(lengths), servers, concurrency=row.clients)
    tpot_ms = ms(totals.tpot.mean_s)
    expert_layers = row.deployment.architecture.expert_layers
    return Judged(row, with_arrival(ms(totals.ttft.mean_s), tpot_ms, engine, expert_layers), tpot_ms)


@dataclass(frozen=True)
class SplitRow:
    """A measured row with prompts apart: places of both kinds of workers, and how many there are."""

    row: ServedRow
    prefill: Deployment
    prefill_workers: int
    workers: int


def read_split(folder: Path) -> list[SplitRow]:
    """The disaggregated rows whose numbers of workers are given."""
    rows: list[dict[str, Any]] = (
        require("pyarrow.parquet", extra="train", purpose="Reading tables").read_table(folder / SERVING).to_pylist()
    )
    split, names = [], ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    for row in rows:
        if row["mode"] == "agg" or not row["prefill_num_workers"] or math.isnan(row["prefill_num_workers"]):
            continue
        kinds = [served_row(row | {name: row[f"{kind}_{name}"] for name in names}) for kind in ("prefill", "decode")]
        workers = [int(row[f"{kind}_num_workers"]) for kind in ("prefill", "decode")]
        split.append(SplitRow(kinds[1], kinds[0].deployment, *workers))
    return split


def follow_split(rows: Sequence[SplitRow]) -> list[Judged]:
    """Every row with prompts apart, simulated as it was measured."""
    fitted, kernels = shipped_engines(), shipped_kernels()
    judged = []
    for split in rows:
        row, engine = split.row, fitted.engine(split.row.engine)
        requests = row.requests()
        longest = max(request.prompt + request.answer for request in requests)
        prompts, answers = (
            deployment_of(place, engine, Steps(place, kernels, engine.framework), longest, MEMORY_FRACTION)
            for place in (split.prefill, row.deployment)
        )
        deployment = replace(
            answers, servers=answers.servers * split.workers, prefill_step_time=prompts.step_time,
            prefill_servers=prompts.servers * split.prefill_workers,
        )  # fmt: skip
        judged.append(_followed(row, engine, deployment))
    return judged


def evaluate(
    store: Path,
    device: str,  # noqa: ARG001 all rows are of H200
    cache: Path,  # noqa: ARG001 nothing is fitted
    *,
    log: Callable[[str], None] = lambda _: None,
    **networks: object,  # noqa: ARG001
) -> list[Comparison]:
    """Median errors of both, over all rows and by engine; and how far they are apart."""
    teaching, fitted = set(teaching_models()), shipped_engines()
    rows = [row for row in read_serving(store) if row.model not in teaching and row.varied]
    followed = follow_rows(rows)
    log(f"{len(rows)} rows followed")
    looped = simulate_rows(rows, shipped_kernels(), {name: fitted.engine(name) for name in RULES})
    groups = {"all": range(len(rows))} | {
        engine: [at for at, row in enumerate(rows) if row.engine == engine] for engine in ("vllm", "sglang", "trtllm")
    }
    table: dict[str, dict[str, Cell]] = {}
    for name, members in groups.items():
        for title, judged in ((SIMULATION, followed), (LOOP, looped)):
            if members:
                table[f"{name}, {title}"] = _errors([judged[at] for at in members], [looped[at] for at in members])
    split = follow_split(read_split(store))
    log(f"{len(split)} rows with prompts apart followed")
    apart: dict[str, dict[str, Cell]] = {}
    for title, own in (("all", split), *((e, [o for o in split if o.row.engine == e]) for e in ("sglang", "trtllm"))):
        if own:
            logs = np.array([one.logs for one in own])
            apart[title] = _errors(own, own) | {
                "TTFT bias": float(np.expm1(np.median(logs[:, 0]))), "TPOT bias": float(np.expm1(np.median(logs[:, 1])))
            }  # fmt: skip
            del apart[title]["TTFT apart"], apart[title]["TPOT apart"]
    return [
        Comparison("Rows of models that only judge", table, ranked=False, shares=_SHARES, head=""),
        Comparison("Prompts apart, DeepSeek-V3", apart, ranked=False, shares=_SHARES, head=""),
    ]


def _errors(judged: Sequence[Judged], other: Sequence[Judged]) -> dict[str, Cell]:
    logs = np.array([one.logs for one in judged])
    apart = np.abs(np.expm1(logs - np.array([one.logs for one in other])))
    errors = np.median(np.abs(np.expm1(logs)), axis=0)
    return {
        "count": len(judged), "TTFT": float(errors[0]), "TPOT": float(errors[1]), "throughput": float(errors[2]),
        "TTFT apart": float(np.median(apart[:, 0])), "TPOT apart": float(np.median(apart[:, 1])),
    }  # fmt: skip


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Servers, simulated and measured\n\n"
        "Rows are closed loops on H200 nodes (aiconfigurator's `h200_sxm_serving`, InferenceMAX's protocol) of models "
        "that taught nothing. The simulation behind `foretell simulate` stands beside the closed loop of `foretell "
        "llm`: median relative errors, and how far the two are apart. Remade by "
        "`python -m lab evaluate serving-simulation TABLES --report`."
    )
    write_whole(folder / "serving-simulation-measured.md", page(text, tables))
    return folder / "serving-simulation-measured.md"
