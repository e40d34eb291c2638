"""Lab: measured mixes against the simulation of ``foretell pack``: how far off is the makespan?

Every mix is simulated as it was run: one GPU, slots, jobs in the order of their arrival. Slowdowns are what the shipped
model of sharing predicts; a rule of thumb, and jobs that do not slow each other down, stand beside it. The time alone
is either the measured one, so that only slowdowns and the simulation can be wrong, or predicted too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices import find_device
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.records import Target, Workload
from foretell.scheduling.cluster import PlaceKind, build_cluster, kind_name
from foretell.scheduling.jobs import Demand, Job, Profile, Run
from foretell.scheduling.policies.choice import make_policy
from foretell.scheduling.simulation import simulate
from foretell.scheduling.slowdowns import Contention, Slowdowns
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.workloads import workload_of
from foretell.training.judging.table import Cell, Comparison, page
from foretell.units import KILO
from foretell.workflows.sharing.group_slowdowns import GroupSlowdowns, MeasuredDevice
from foretell.workflows.sharing.launches import describe_launches, measured_model
from foretell.workflows.workload import choose_predictor

OURS, RULE, NONE = "predicted slowdowns", "rule of thumb", "no slowdowns"
MEASURED, PREDICTED = "measured", "predicted"
_COLUMNS = (
    "campaign_id", "mix_id", "method", "max_jobs", "jobs", "job", "workload_id", "spec", "family", "mode", "optimizer",
    "dtype", "batch_size", "input_shape", "channels_last", "solo_ms", "steps", "arrival_s", "end_s", "status",
)  # fmt: skip
Row = Mapping[str, Any]
Log = Callable[[str], None]


@dataclass(frozen=True)
class MeasuredMix:
    """A mix that ran: its jobs in their order, and the makespan."""

    name: str
    method: str
    max_jobs: int
    rows: Sequence[Row]

    @property
    def makespan_s(self) -> float:
        """From the beginning to the last end."""
        return max(float(row["end_s"]) for row in self.rows)

    @property
    def alone_s(self) -> float:
        """The jobs one after the other."""
        return sum(float(row["steps"] * row["solo_ms"]) for row in self.rows) / KILO


def read_mixes(store: Path) -> list[MeasuredMix]:
    """The mixes below ``store`` in which every job made all its steps."""
    rows: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for file in find_files(store):
        if file.table == "mixes":
            for row in read_columns(file, _COLUMNS).to_pylist():
                rows[row["campaign_id"], row["mix_id"]].append(row)
    mixes = []
    for (_, name), own in rows.items():
        own.sort(key=lambda row: row["job"])
        if len(own) == own[0]["jobs"] and all(row["status"] == "ok" for row in own):
            mixes.append(MeasuredMix(name, own[0]["method"], own[0]["max_jobs"], own))
    if not mixes:
        raise DataError(
            f"No mix was measured below {store}; measure some: python -m lab collect plans/h200-mixes.toml."
        )
    return mixes


def simulated_s(mix: MeasuredMix, device: str, alone_ms: Sequence[float], slowdowns: Slowdowns) -> list[float]:
    """When each job of a mix ends in the simulation."""
    place = find_device(device)
    kind = PlaceKind(kind_name(place, None, mix.method), place, None, mix.method, mix.max_jobs, mix.max_jobs)
    jobs = []
    for number, (row, step_ms) in enumerate(zip(mix.rows, alone_ms, strict=True)):
        profile = Profile(number, row["workload_id"], {kind.name: Demand(step_ms)})
        jobs.append(Job(str(number), profile, float(row["arrival_s"]), float(row["steps"])))
    ends = [0.0] * len(jobs)

    def done(run: Run) -> tuple[()]:
        ends[int(run.job.name)] = run.end_s
        return ()

    simulate(jobs, build_cluster([(kind,)]), make_policy("slots", slowdowns, slowdowns), slowdowns, done)
    return ends


def alone(kind: PlaceKind, profiles: Sequence[Profile]) -> Sequence[float]:  # noqa: ARG001
    """Slowdowns of jobs that do not feel each other."""
    return [1.0] * len(profiles)


def evaluate(
    store: Path,
    device: str,
    cache: Path,  # noqa: ARG001 nothing is fitted
    *,
    log: Log = lambda _: None,
    **networks: object,  # noqa: ARG001
) -> list[Comparison]:
    """Tables: the error of the makespan over all mixes, then every mix."""
    mixes = read_mixes(store)
    workloads = dict(_workloads(store, device, [row for mix in mixes for row in mix.rows]))
    model, target = measured_model(find_device(device)), Target(find_device(device))
    if model is None:
        raise DataError(f"No model of sharing is shipped for {device}; fit one: foretell train -p sharing.")
    predictor = choose_predictor(None, target)
    launches, latency_ms = {}, {}
    for name, workload in workloads.items():
        launches[name] = describe_launches(model, workload)
        predicted = predictor.predict(workload).latency_ms
        assert predicted is not None
        latency_ms[name] = predicted.value + launches[name].mps_ms
    errors: defaultdict[str, list[float]] = defaultdict(list)
    single: dict[str, dict[str, Cell]] = {}
    for mix in mixes:
        names = [row["workload_id"] for row in mix.rows]
        kind = kind_name(find_device(device), None, mix.method)
        known = {(kind, number): launches[name] for number, name in enumerate(names)}
        ours = GroupSlowdowns({device: MeasuredDevice(model, known)}, Contention())
        measured_ms = [float(row["solo_ms"]) for row in mix.rows]
        predicted_ms = [latency_ms[name] for name in names]
        makespans = {}
        for title, alone_ms, slowdowns in (
            (f"{OURS}, {MEASURED} times alone", measured_ms, ours),
            (f"{OURS}, {PREDICTED} times alone", predicted_ms, ours),
            (f"{RULE}, {MEASURED} times alone", measured_ms, Contention()),
            (f"{NONE}, {MEASURED} times alone", measured_ms, alone),
        ):
            makespans[title] = max(simulated_s(mix, device, alone_ms, slowdowns))
            errors[title].append(makespans[title] / mix.makespan_s - 1)
        single[mix.name] = {
            "jobs": len(mix.rows), "at a time": mix.max_jobs, "one by one, s": mix.alone_s,
            "measured, s": mix.makespan_s,
            "simulated, s": makespans[f"{OURS}, {MEASURED} times alone"],
            "all predicted, s": makespans[f"{OURS}, {PREDICTED} times alone"],
        }  # fmt: skip
        log(f"{len(single)} of {len(mixes)} mixes simulated")
    table: dict[str, dict[str, Cell]] = {
        title: {
            "mixes": len(own), "mean error": float(np.abs(own).mean()), "median": float(np.median(np.abs(own))),
            "worst": float(np.abs(own).max()), "bias": float(np.mean(own)),
        }
        for title, own in errors.items()
    }  # fmt: skip
    shares = frozenset(("mean error", "median", "worst", "bias"))
    return [
        Comparison("Makespan, simulated against measured", table, ranked=False, shares=shares, head=""),
        Comparison("Every mix", single, ranked=False, head="mix"),
    ]


def _workloads(store: Path, device: str, rows: Sequence[Row]) -> Iterator[tuple[str, Workload]]:
    """By name the workloads of the jobs, with their graphs."""
    waiting: defaultdict[GraphKey, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        waiting[GraphKey.of(row)][row["workload_id"]] = row
    for key, _, graph in read_graphs(store, list(waiting)):
        for name, row in waiting.pop(key).items():
            yield name, workload_of(row, graph, Target(find_device(device)))
    if waiting:
        raise DataError(f"{len(waiting)} models of the mixes have no graph; make them: foretell data graphs.")


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Mixes of jobs on one GPU, simulated and measured\n\n"
        "Queues of jobs that ran on one GPU, two or three at a time under MPS: when one ended, the next started. The "
        "simulation of `foretell pack` runs the same queue. Remade by `python -m lab evaluate mixes --report`."
    )
    write_whole(folder / "mixes.md", page(text, tables))
    return folder / "mixes.md"
