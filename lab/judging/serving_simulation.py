"""Lab: the simulation of servers against measured rows, beside the closed loop of ``foretell llm``.

Both get the same requests, step times and engine times (fitted with the closed loop, `lab.judging.serving`); only how
steps are made differs. Judged are rows of models that taught nothing, where the protocol of the measurement is known.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from foretell.files import write_whole
from foretell.predictors.llm.deployment import MEMORY_FRACTION
from foretell.predictors.llm.engines import RULES, shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from foretell.predictors.llm.serving import with_arrival
from foretell.predictors.llm.steps import Steps
from foretell.scheduling.serving import closed_loop, simulate_serving
from foretell.training.judging.table import Cell, Comparison, page
from foretell.units import ms
from foretell.workflows.serving.simulate import deployment_of
from lab.judging.serving import Judged, simulate_rows
from lab.judging.serving_rows import ServedRow, read_serving, teaching_models

SIMULATION, LOOP = "foretell simulate", "foretell llm"
_SHARES = frozenset(("TTFT", "TPOT", "throughput", "TTFT apart", "TPOT apart"))


def follow_rows(rows: Sequence[ServedRow]) -> list[Judged]:
    """Every row, simulated as it was measured."""
    fitted, kernels = shipped_engines(), shipped_kernels()
    judged = []
    for row in rows:
        engine, place = fitted.engine(row.engine), row.deployment
        requests = row.requests()
        longest = max(request.prompt + request.answer for request in requests)
        deployment = deployment_of(place, engine, Steps(place, kernels, engine.framework), longest, MEMORY_FRACTION)
        lengths = ((request.prompt, request.answer) for request in requests)
        totals = simulate_serving(closed_loop(lengths), deployment, concurrency=row.clients)
        tpot_ms = ms(totals.tpot.mean_s)
        judged.append(Judged(row, with_arrival(ms(totals.ttft.mean_s), tpot_ms, engine), tpot_ms))
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
    return [Comparison("Rows of models that only judge", table, ranked=False, shares=_SHARES, head="")]


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
