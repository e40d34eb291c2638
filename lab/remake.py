"""Lab: every table of the laboratory, how long it takes, and the commands that make it again.

Minutes are those of two cores; seconds are those of one H200 with 16 cores beside it. Both are what a run took, or None
where nobody has timed it. ``TABLES`` stands for the folder of public tables that a command reads.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import InputError
from foretell.registry import did_you_mean

TABLES = "TABLES"


@dataclass(frozen=True)
class Remade:
    """A table: the file it is in (None: it is printed), its commands in order, and what they take."""

    name: str
    report: str | None
    commands: tuple[str, ...]
    minutes: float | None = None
    gpu_seconds: float | None = None

    @property
    def needs_tables(self) -> bool:
        """Whether a folder of public tables has to be given."""
        return any(TABLES in command for command in self.commands)

    @property
    def time(self) -> str:
        """What it takes, in words."""
        parts = [f"{self.minutes:g} min of two cores"] if self.minutes is not None else []
        parts += [f"{self.gpu_seconds:g} s of an H200"] if self.gpu_seconds is not None else []
        return " and ".join(parts) or "not timed"


_SET, _JOINED, _WHOLE = "out/o/dippm-set.npz", "out/o/joined-set.npz", "out/o/whole-set.npz"
_ARMS, _TRAPPM = "out/dippm", "out/trappm"
# all workloads with a graph, and those of the papers' families in kind
_WHOLE_SET = (
    f"lab.papers.dippm.prepare {_SET}", "lab.papers.dippm.grid_set graphs",
    f"lab.papers.dippm.grid_set join {_JOINED} --also {_SET}", "lab.papers.dippm.grid_set graphs --plan steps",
    f"lab.papers.dippm.grid_set join {_WHOLE} --plan steps --also {_JOINED}",
)  # fmt: skip
_BY_CORE = "--bf16 --whole --processes 1 --device cpu --seconds 9000"  # a second run goes on
_NARROW = f"lab.papers.dippm.fits {_WHOLE} {_ARMS} {_BY_CORE}"
_NETWORKS = "dippm gcn gat gin nnlqp brp-nas mlp trappm"
REMADE = (
    Remade("arithmetic", None, ("lab.papers.arithmetic",), 0.1),
    Remade("occupancy-slowdowns", None, ("lab.papers.dnn_occu.slowdowns",), 0.1),
    Remade("pairs", None, ("lab.papers.pairs",), 0.1),
    # full width on a GPU, then narrow copies on a core
    Remade("dippm", "reports/dippm.md",
           (*_WHOLE_SET, f"lab.papers.dippm.fits {_WHOLE} {_ARMS} --parts best --whole --seconds 700 --processes 6 "
            "--only dippm-by-bound-and-power-families,dippm-families-random-0,gcn-families,gat-families,gin-families,"
            "dippm-by-bound-families-architecture",
            f"{_NARROW} --parts best --only mlp-families-random-0",
            f"{_NARROW} --parts best --width 128 --epochs 80 --only dippm-by-bound-and-power-families,"
            "dippm-by-bound-inference-architecture-0,mlp-inference-architecture",
            f"{_NARROW} --parts best --width 128 --epochs 40 --only dippm-families-random-0,dippm-16-classes,dippm-mse",
            f"{_NARROW} --parts table-4 --width 64 --only " + ",".join(
                f"{block}-ten-epochs-families-random-0" for block in ("dippm", "gcn", "gat", "gin", "mlp")),
            f"lab.papers.dippm.report {_WHOLE} {_ARMS}/dippm-arms.npz"), 90, 660),
    Remade("mlp-of-the-thesis", None,
           (*_WHOLE_SET, f"lab.papers.dippm.fits {_WHOLE} out/thesis-mlp --parts thesis-mlp {_BY_CORE}")),
    Remade("trappm", "reports/trappm.md",
           (*_WHOLE_SET, f"lab.papers.trappm.encoders {_WHOLE} {_TRAPPM} --by-bound --encoders linear-0-0 --whole "
            "--splits random --epochs 150 --share 0.6 --seconds 1800 --processes 6",
            f"lab.papers.trappm.encoders {_WHOLE} {_TRAPPM} --by-bound --encoders linear-0-0 --splits random "
            f"--shares 0.1 --only pre-trained,random,none --epochs 50 --width 96 {_BY_CORE}",
            f"lab.papers.dippm.report {_WHOLE} {_TRAPPM}/trappm-arms.npz --name trappm",
            f"lab.papers.trappm.embedding {_SET} {_TRAPPM} linear-0-0 --by-bound "
            "--svg docs/pictures/trappm-embedding.svg"), 50, 1030),
    # energy is its watts times what the arms of dippm and trappm say of latency
    Remade("trappm-power", None,
           (*_WHOLE_SET, f"lab.papers.trappm.power {_WHOLE} --epochs 40 "
            f"--arms {_ARMS}/dippm-arms.npz {_TRAPPM}/trappm-arms.npz"), 35),
    Remade("trappm-transfer", None,
           ("lab.papers.dippm.prepare out/o/cpu-set.npz --store data-cpu --device cpu",
            f"lab.papers.trappm.transfer {_SET} out/o/cpu-set.npz {_TRAPPM} linear-0-0 --width 96 "
            "--by-bound --epochs 30 --seeds 3")),
    Remade("rate-finder", None,
           (f"lab.papers.dippm.prepare {_SET}", f"lab.papers.dippm.rate_finder {_SET} --seeds 3")),
    Remade("convolutions", None, ("lab.papers.downscaling.convolutions",), 1),
    Remade("tensor-cores", None, ("lab.papers.downscaling.tensor_cores",), 0.1),
    # the counters are taken by python -m lab.campaigns.roofline, on a GPU with ncu
    Remade("hierarchical-roofline", "reports/hierarchical-roofline.md", ("lab.papers.downscaling.hierarchy",)),
    Remade("downscaling", "reports/downscaling.md", ("lab.papers.downscaling.costs",), 0.2),
    Remade("networks", "reports/evaluation.md",
           (f"lab evaluate {_NETWORKS} --processes 6 --fit-seconds 48 --only-networks",
            f"lab evaluate {_NETWORKS} linear gradient-boosting --report"), None, 300),
    Remade("lilou-partitioner", "reports/lilou.md", ("lab evaluate lilou-partitioner --report --fit-seconds 218",)),
    Remade("lilou-analyser", "reports/lilou.md",
           ("lab evaluate lilou-analyser --only-networks", "lab evaluate lilou-analyser --report"), 60),
    Remade("lilou-compiled", "reports/lilou.md",
           ("lab evaluate lilou-analyser --only-networks", "lab.papers.lilou.group_fits")),
    Remade("lilou-patterns", None, ("lab.papers.lilou.patterns",), 0.1),
    Remade("lilou-sizes", None, ("lab.papers.lilou.input_sizes",), 6),
    Remade("dnn-occu", "reports/dnn-occu.md",
           ("lab evaluate dnn-occu --fit-seconds 300 --processes 4 --report",), 10, 480),
    Remade("flattened", "reports/flattened-gpu.md", ("lab evaluate flattened --report",)),
    Remade("flattened-cpu", "reports/flattened-cpu.md",
           ("lab evaluate flattened -d cpu --store data-cpu --report",), 8),
    Remade("sharing", "reports/sharing.md", ("lab evaluate sharing --report",), 6),
    Remade("mixes", "reports/mixes.md", ("lab evaluate mixes --report",), 2),
    Remade("llm-trees", "reports/llm-trees.md", (f"lab evaluate llm-trees {TABLES} --report",), 10),
    Remade("llm-network", None,
           (f"lab.papers.dippm.prepare {_SET}", f"lab.papers.llm_network {_SET} --width 64 --epochs 150")),
    Remade("llm", "reports/llm.md", (f"lab evaluate llm {TABLES} --report",), 20),
    Remade("collectives", "reports/collectives.md", (f"lab evaluate collectives {TABLES} --report",), 1),
    Remade("serving-simulation", "reports/serving-simulation-measured.md",
           (f"lab evaluate serving-simulation {TABLES} --report",), 1),
    Remade("adapt", "reports/adapt.md", (f"lab evaluate adapt {TABLES} --report",), 8),
    Remade("transfer", "reports/other-gpus.md", (f"lab evaluate transfer {TABLES} --report",), 2),
    Remade("few-shot", None, (f"lab.papers.few_shot {TABLES}",)),
    # the networks on a GPU, the samples on a core
    Remade("chapter7", "reports/chapter7.md",
           (f"lab.papers.graph_llm.study {TABLES} --steps "
            "prepare,convert,encoder,text,fit,baseline,ablations --fit-steps 2400",
            f"lab.papers.graph_llm.study {TABLES} --size few-by-processor --steps known,recipes,few,report --report"),
           30, 640),
    Remade("slices", "reports/slices.md", ("foretell evaluate slices --report",)),
    Remade("occupancy", "reports/occupancy.md", ("foretell evaluate occupancy --report",)),
    Remade("unit-network", "reports/evaluation.md", ("foretell evaluate unit-network --split architecture --report",)),
)  # fmt: skip


def find(name: str) -> Remade:
    """A table by its name."""
    for entry in REMADE:
        if entry.name == name:
            return entry
    raise InputError(f"Unknown table {name!r}.{did_you_mean(name, [entry.name for entry in REMADE])}")


def listed() -> list[str]:
    """One line for each table: its name, its time, and where it is."""
    return [f"{entry.name:20} {entry.time:45} {entry.report or 'printed'}" for entry in REMADE]


def remake(names: Sequence[str], tables: Path | None, log: Callable[[str], None]) -> None:
    """Run the commands of some tables one after the other; the first that fails ends it."""
    chosen = [find(name) for name in names]
    for entry in chosen:
        if entry.needs_tables and tables is None:
            raise InputError(f"{entry.name} reads public tables: give their folder with --tables.")
    for entry in chosen:
        for command in entry.commands:
            words = [str(tables) if word == TABLES else word for word in shlex.split(command)]
            log(f"python -m {shlex.join(words)}")
            code = subprocess.run([sys.executable, "-m", *words], check=False).returncode
            if code:
                raise InputError(f"{entry.name}: python -m {shlex.join(words)} ended with the code {code}.")
