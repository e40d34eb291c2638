"""Profiling: the plan of a campaign, read from TOML and checked before the campaign starts."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foretell.devices.cpu_runs import CpuRun
from foretell.errors import InputError
from foretell.profiling.workload import DTYPES, MODES, OPTIMIZERS, TF32
from foretell.registry import did_you_mean

ZOOS = ("timm", "torchvision", "hf", "llm", "synthetic", "wild")
TWINS = ("channels_last", TF32)
RUNTIMES = ("eager", "onnxruntime")
KINDS = ("measurements", "slices", "colocation", "occupancy", "fusion", "compiled")


@dataclass(frozen=True)
class Measuring:
    """How each workload is measured; the defaults are those of the protocol.

    On a CPU, ``runtime`` is ``eager`` or ``onnxruntime``, ``threads`` are the cores that a worker keeps to, and after
    ``longest_s`` no further run of a workload begins (0: no limit).
    """

    warmups: int = 5
    replays: int = 20
    tries: int = 3
    max_cv: float = 0.05
    eager_runs: int = 5
    eager_share: float = 1.0
    energy_share: float = 0.2
    energy_s: float = 1.0
    trace_share: float = 0.4
    fallback_runs: int = 5
    runtime: str = "eager"
    threads: int = 1
    longest_s: float = 0.0

    @property
    def run(self) -> CpuRun:
        """What its measurements are of, as a store tells them apart."""
        return CpuRun(self.runtime, self.threads)


@dataclass(frozen=True)
class Limits:
    """Limits of a workload; one that exceeds a limit is not measured but recorded as skipped."""

    max_latency_ms: float = 80.0
    max_memory_gib: float = 30.0
    max_parameters: float = 9e9
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Workers:
    """How many processes share the device: ``measure`` of them take timings, ``trace`` of them record kernels.

    If ``fresh``, each workload is measured, and then traced, in a process of its own.
    """

    measure: int = 5
    trace: int = 2
    fresh: bool = True


@dataclass(frozen=True)
class Selection:
    """Which workloads are chosen from the tables of earlier campaigns, ``measured``; without any, they are drawn.

    A part takes its share of ``workloads`` from what earlier campaigns measured under its name. With ``max_kernels``,
    only workloads are chosen that were traced and launch at most so many kernels.
    """

    measured: tuple[str, ...] = ()
    workloads: int = 75
    min_latency_ms: float = 0.05
    max_latency_ms: float = 6.0
    max_memory_mib: float = 1500.0
    max_kernels: int = 0


@dataclass(frozen=True)
class Slices:
    """A ``slices`` campaign: the same captured step on shares of the device's multiprocessors.

    ``batch`` workloads are prepared at once and kept on the device while they are timed. Green contexts have
    ``sm_counts`` multiprocessors and get the first ``green_workloads``, prepared by ``green_processes``. With
    ``energy`` the power on every slice is read too.
    """

    methods: tuple[str, ...] = ("mps", "green-context")
    percents: tuple[float, ...] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    batch: int = 10
    sm_counts: tuple[int, ...] = (16, 32, 48, 64, 96, 128)
    green_workloads: int = 20
    green_processes: int = 4
    energy: bool = False


@dataclass(frozen=True)
class Colocation:
    """A ``colocation`` campaign: groups of processes that replay their steps at the same time.

    ``groups`` are drawn for every method. ``together_s`` is the usual window; slow steps get a longer one.
    ``percentages`` limit the processes under MPS, in turn. The first ``copies`` workloads also meet themselves.
    ``mixes`` are queues of jobs, measured before the groups.

    On a CPU, ``core_sets`` sets of two cores work side by side, each with so many ``processes``; a group shares a set.
    """

    methods: tuple[str, ...] = ("mps", "time-slicing")
    group_sizes: tuple[int, ...] = (2, 3)
    groups: int = 200
    processes: int = 16
    together_s: float = 0.3
    memory_gib: float = 6.0
    percentages: tuple[float, ...] = ()
    copies: int = 0
    mixes: int = 0
    core_sets: int = 0


@dataclass(frozen=True)
class Occupancy:
    """An ``occupancy`` campaign: hardware counters of one run, kernel by kernel.

    ``processes`` profilers prepare at the same time, each ``per_process`` workloads; one counts. A run that takes
    longer than ``run_s`` under the profiler is given up.
    """

    kernels_max: int = 2000
    processes: int = 6
    per_process: int = 16
    run_s: float = 12.0


@dataclass(frozen=True)
class Fusion:
    """A ``fusion`` campaign: which operators a compiler puts into one kernel."""

    backends: tuple[str, ...] = ("inductor", "onnxruntime")
    processes: int = 8


@dataclass(frozen=True)
class Compiled:
    """A ``compiled`` campaign: models as they are and as ``torch.compile`` makes them.

    ``processes`` compile and keep up to ``per_process`` models each, while ``free_gib`` of the device's memory are
    left. At least the last ``measure_share`` of the time is for measuring, one process after the other.
    """

    processes: int = 14
    measure_share: float = 0.25
    per_process: int = 40
    free_gib: float = 12.0


@dataclass(frozen=True)
class Part:
    """A part of the campaign, with a share of its time: where its models come from and how workloads are drawn.

    If ``captured`` is false, nothing is replayed: the latency is computed from the kernels of a few traced runs.
    ``twins`` are options that each workload is measured with once more: ``channels_last``, and ``tf32`` for those in
    fp32. With ``specs`` nothing is drawn: these models of the zoos are taken in this order, each with every mode,
    optimizer, precision, batch and sequence of the part.
    """

    name: str
    share: float
    zoos: tuple[str, ...]
    modes: tuple[str, ...] = ("inference",)
    dtypes: tuple[str, ...] = DTYPES
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    first_batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    sizes: tuple[int, ...] = ()
    size_share: float = 0.0
    sequences: tuple[int, ...] = ()
    optimizers: tuple[str, ...] = ("",)
    families: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_model: int = 4
    models: int = 0
    captured: bool = True
    twins: tuple[str, ...] = ()
    specs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The plan of a campaign, reproducible from its seed. ``seconds`` is its time budget; 0 means none."""

    seed: int
    parts: tuple[Part, ...]
    kind: str = "measurements"
    seconds: float = 0.0
    measuring: Measuring = field(default_factory=Measuring)
    limits: Limits = field(default_factory=Limits)
    workers: Workers = field(default_factory=Workers)
    selection: Selection = field(default_factory=Selection)
    slices: Slices = field(default_factory=Slices)
    colocation: Colocation = field(default_factory=Colocation)
    occupancy: Occupancy = field(default_factory=Occupancy)
    fusion: Fusion = field(default_factory=Fusion)
    compiled: Compiled = field(default_factory=Compiled)


def read_plan(path: Path) -> Plan:
    """Read and check a plan."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read the plan {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"The plan {path} is not TOML: {error}.") from error
    _check_keys(values, {"seed", "kind", "seconds", "part", *_SECTIONS}, "the plan")
    kind = str(values.get("kind", "measurements"))
    if kind not in KINDS:
        raise InputError(f"Unknown kind {kind!r} of the plan {path}.{did_you_mean(kind, KINDS)}")
    seconds = values.get("seconds", 0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise InputError(f"The time budget of the plan {path} is {seconds!r}: give seconds, or leave it out.")
    seed = values.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"The seed of the plan {path} is {seed!r}: give a whole number, or leave it out.")
    if not isinstance(values.get("part", []), list):
        raise InputError(f"A part of the plan {path} is a list's: write [[part]], not [part].")
    parts = tuple(_part(part) for part in values.get("part", []))
    if not parts:
        raise InputError(f"The plan {path} has no [[part]]: nothing would be measured.")
    if len({part.name for part in parts}) < len(parts):
        raise InputError(f"The plan {path} has two parts of the same name.")
    sections = {name: _section(section, values.get(name, {}), f"[{name}]") for name, section in _SECTIONS.items()}
    check_workers(sections["workers"])
    _check_measuring(sections["measuring"])
    _check_compiled(sections["compiled"])
    return Plan(seed=seed, parts=parts, kind=kind, seconds=float(seconds), **sections)


def check_workers(workers: Workers) -> None:
    """Raise an error if no worker would measure."""
    if workers.measure < 1 or workers.trace < 0:
        raise InputError(
            f"There must be 1 worker or more that measures, not {workers.measure}, and not {workers.trace} that trace."
        )


def _check_measuring(measuring: Measuring) -> None:
    if measuring.runtime not in RUNTIMES:
        raise InputError(
            f"Unknown runtime {measuring.runtime!r} in [measuring].{did_you_mean(measuring.runtime, RUNTIMES)}"
        )
    if measuring.threads < 1 or measuring.longest_s < 0:
        raise InputError("[measuring] needs 1 thread or more, and a longest_s of 0 or more.")


def _check_compiled(compiled: Compiled) -> None:
    if compiled.processes < 1 or compiled.per_process < 1:
        raise InputError(
            f"[compiled] has {compiled.processes} processes of {compiled.per_process} models: both must be 1 or more."
        )
    if not 0 < compiled.measure_share < 1:
        raise InputError(f"measure_share in [compiled] is {compiled.measure_share:g}: it must be between 0 and 1.")


_SECTIONS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "measuring": Measuring,
        "limits": Limits,
        "workers": Workers,
        "selection": Selection,
        "slices": Slices,
        "colocation": Colocation,
        "occupancy": Occupancy,
        "fusion": Fusion,
        "compiled": Compiled,
    }
)


def _check_keys(values: Mapping[str, object], known: set[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise InputError(f"Unknown key {key!r} in {where}.{did_you_mean(key, known)}")


def _section(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    if not isinstance(values, dict):
        raise InputError(f"{where.strip('[]')!r} is {values!r}: write a section, {where}.")
    known = {field.name: field for field in fields(kind)}
    _check_keys(values, set(known), where)
    for key, value in values.items():
        expected, right = _TYPES[str(known[key].type)]
        if not right(value):
            raise InputError(f"{key} in {where} is {value!r}: it must be {expected}.")
        if value == [] and known[key].default not in ((), MISSING):
            raise InputError(f"{key} in {where} is empty: leave it out, or name at least one.")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _list_of(right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(right, value))


_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = MappingProxyType(
    {
        str(str): ("a text", _is_text),
        str(int): ("a whole number", _is_integer),
        str(float): ("a number", _is_number),
        str(bool): ("true or false", lambda value: isinstance(value, bool)),
        str(tuple[str, ...]): ("a list of texts", _list_of(_is_text)),
        str(tuple[int, ...]): ("a list of whole numbers", _list_of(_is_integer)),
        str(tuple[float, ...]): ("a list of numbers", _list_of(_is_number)),
    }
)


_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"zoos": ZOOS, "modes": MODES, "dtypes": (*DTYPES, TF32), "optimizers": OPTIMIZERS, "twins": TWINS}
)


def _part(values: Mapping[str, Any]) -> Part:
    _check_keys(values, {field_.name for field_ in fields(Part)}, "a [[part]]")
    needed = [field_.name for field_ in fields(Part) if field_.default is MISSING and field_.name not in values]
    if needed:
        raise InputError(f"A [[part]] of the plan lacks {', '.join(needed)}.")
    part: Part = _section(Part, values, f"[[part]] {values['name']!r}")
    for key, choices in _CHOICES.items():
        for value in getattr(part, key):
            if value not in choices:
                raise InputError(f"Unknown {key} {value!r} in part {part.name!r}.{did_you_mean(value, choices)}")
    if part.share <= 0 or part.per_model < 1 or min((*part.batch_sizes, *part.first_batch_sizes)) < 1:
        raise InputError(f"Part {part.name!r} needs a positive share, per_model and batch sizes.")
    if "training" in part.modes and not all(part.optimizers):
        raise InputError(f"Part {part.name!r} trains: name its optimizers, for example ['sgd', 'adamw'].")
    return part
