"""Lab: counters of the hierarchical roofline, ten networks: ``python -m lab.campaigns.roofline --seconds 110``.

After chapter 3 of the thesis and C. Yang et al., Hierarchical roofline performance analysis for deep learning
applications, 2021: bytes of L1, L2 and HBM, time, and floating-point operations of every kernel of a forward pass, by
``ncu``. Caches are flushed before each kernel, as ncu does by default and as the thesis left it.

Which metrics a GPU has is asked of ncu, and the rest is tried: work of a known size (a product, a loop of fp16
multiply-adds, a loop of loads) is counted first, with a shorter list where the longer one counts nothing. It stays in
the file, so that a report can see which counters tell the truth: on Hopper some do not count ``wgmma``.
"""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, MeasurementError
from foretell.files import write_whole
from foretell.processes.parent import child_environment, kill_group
from foretell.profiling.campaign.plan import Limits
from foretell.profiling.trackers.ncu import Metrics, error_text, find_ncu, read_metrics, split_ranges
from foretell.profiling.workload import Workload

log = logging.getLogger("foretell.profiling")

WORKER = ("-m", "lab.campaigns.roofline_worker")
OUT = Path("data/h200/hierarchical-roofline/counters.json")
VERSION = 1
DTYPES = ("fp16", "fp32")
_PICTURE = (3, 224, 224)
_BERT = "hf:bert?hidden_size=768&intermediate_size=3072&num_attention_heads=12&num_hidden_layers=12&vocab_size=30522"
# name, spec, one input, batch
NETWORKS: tuple[tuple[str, str, tuple[int, ...], int], ...] = (
    ("resnet50", "timm:resnet50", _PICTURE, 32),
    ("mobilenetv3_large_100", "timm:mobilenetv3_large_100", _PICTURE, 32),
    ("efficientnet_b0", "timm:efficientnet_b0", _PICTURE, 32),
    ("vgg16", "timm:vgg16", _PICTURE, 32),
    ("densenet121", "timm:densenet121", _PICTURE, 32),
    ("vit_base_patch16_224", "timm:vit_base_patch16_224", _PICTURE, 32),
    ("convnext_tiny", "timm:convnext_tiny", _PICTURE, 32),
    ("swin_tiny", "timm:swin_tiny_patch4_window7_224", _PICTURE, 32),
    ("bert", _BERT, (128,), 32),
    ("downscaling", "lab:downscaling", (3, 96, 128), 32),
)
PROBES = (
    Workload("lab:product", 4096, (4096,), "fp16"),
    Workload("lab:product", 4096, (4096,), "tf32"),
    Workload("lab:half-loop", 1, (1,), "fp32"),
    Workload("lab:load-loop", 1, (1,), "fp32"),
)
TIME = "gpu__time_duration.sum"
LEVELS = {"L1": "l1tex__t_bytes.sum", "L2": "lts__t_bytes.sum", "HBM": "dram__bytes.sum"}
SASS = {f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum": 2 if op.endswith("fma") else 1
        for op in ("hadd", "hmul", "hfma", "fadd", "fmul", "ffma")}  # fmt: skip
# operations on tensor cores, by number format: named so on some chips, and as below on others
OPS = tuple(
    f"sm__ops_path_tensor_{formats}.sum"
    for formats in ("src_fp16_dst_fp16", "src_fp16_dst_fp32", "src_tf32_dst_fp32", "op_hmma_src_fp16_dst_fp16",
                    "op_hmma_src_fp16_dst_fp32", "op_hmma_src_tf32_dst_fp32")
)  # fmt: skip
HMMA, GMMA = "sm__inst_executed_pipe_tensor_op_hmma.sum", "sm__inst_executed_pipe_tensor_op_gmma.sum"
HFMA2 = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"  # plain fp16, counted with HMMA
BUSY = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"  # GMMA is in it
_CORE = (TIME, *LEVELS.values())
# tried in this order until one counts; the first without what ncu says the chip has not
METRICS = (
    (*_CORE, HMMA, GMMA, HFMA2, BUSY, *OPS, *SASS),
    (*_CORE, HMMA, GMMA, BUSY, *SASS),
    (*_CORE, "sm__inst_executed_pipe_tensor.sum", *SASS),
    _CORE,
)
# a few passes over each kernel: operations are then those of the network's graph
BRIEF = (*_CORE, HMMA, GMMA, HFMA2, BUSY)
_START_S, _PRINT_S, _RANGE_S = 25.0, 20.0, 60.0  # a start of ncu and its models; its results; one network at most
_PROBE_S = 45.0
_NAME_LENGTH = 400


@dataclass(frozen=True)
class Ran:
    """What one ``ncu`` printed: the kernels of each workload with how often each ran; errors; the program's events."""

    kernels: dict[str, list[tuple[Metrics, int]]]
    failures: dict[str, str]
    error: str


def options(metrics: Sequence[str], cache_control: str) -> list[str]:
    """The arguments of ``ncu``; ranges name the operator call of each kernel."""
    return [
        "--clock-control", "none", "--cache-control", cache_control, "--profile-from-start", "off",
        "--replay-mode", "kernel", "--target-processes", "application-only", "--metrics", ",".join(metrics),
        "--csv", "--page", "details", "--print-units", "base", "--print-kernel-base", "demangled", "--nvtx",
    ]  # fmt: skip


def known_metrics(ncu: str, chip: str = "gh100") -> set[str]:
    """The names of the metrics of a chip, without what is appended to them; empty where ncu does not tell."""
    with suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(
            [ncu, "--query-metrics", "--chips", chip], capture_output=True, text=True, timeout=30, check=False
        )
        return {line.split()[0] for line in told.stdout.splitlines() if "__" in line.partition(" ")[0]}
    return set()


def metric_sets(known: set[str]) -> list[tuple[str, ...]]:
    """The lists to try; the first has only what the chip is known to have, if that is known."""
    first = tuple(name for name in METRICS[0] if not known or name in _CORE or name.partition(".")[0] in known)
    return [first, *METRICS[1:]]


def count(
    workloads: Sequence[Workload], metrics: Sequence[str], seconds: float, *, ncu: str, cache_control: str, device: str
) -> Ran:
    """Run workloads once each under ``ncu`` in about ``seconds``; what did not fit is absent."""
    with tempfile.TemporaryDirectory(prefix="foretell-roofline-") as name:
        folder = Path(name)
        path, now = folder / "settings.json", time.monotonic()
        settings = {
            "device": device,
            "folder": str(folder),
            "events": str(folder / "events.jsonl"),
            "campaign": os.getpid(),
            "stop_at": now + seconds - _PRINT_S / 2,
            "kill_at": now + seconds,
            "kernels_max": 10**6,
            "run_s": _RANGE_S,
            "limits": asdict(Limits()),
            "preload": sorted({workload.spec.partition(":")[0] for workload in workloads}),
            "groups": [{"workloads": [workload.to_json()], "wanted": 1} for workload in workloads],
        }
        path.write_text(json.dumps(settings), encoding="utf-8")
        command = [ncu, *options(metrics, cache_control), "--log-file", str(folder / "ncu.csv")]
        with (folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                [*command, sys.executable, *WORKER, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=child_environment({"LC_ALL": "C", "TMPDIR": str(folder)}),
                start_new_session=True,
            )
            try:
                process.wait(seconds + _PRINT_S)  # the program ends itself at `kill_at`, and ncu prints what it has
            except subprocess.TimeoutExpired:
                log.warning("ncu was late and is ended: what it had counted is lost")
            finally:
                _end(process, folder)
        return read_run(folder)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    pids = [int(event["pid"]) for event in _events(folder) if event["event"] == "pid"]
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            kill_group(process.pid)
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def read_run(folder: Path) -> Ran:
    """The results in the folder of one ``ncu``."""
    lines, output, events = _lines(folder / "ncu.csv"), _lines(folder / "output.log"), _events(folder)
    opened = [str(event["id"]) for event in events if event["event"] == "open"]
    closed = {str(event["id"]): event for event in events if event["event"] == "close"}
    failures = {str(e["id"]): f"{e['status']}: {e['error']}" for e in events if e["event"] == "record"}
    kernels = {}
    # an ncu that was ended has opened a range that it did not print
    for workload_id, inside in zip(opened, split_ranges(read_metrics(lines)), strict=False):
        if workload_id in closed and inside:
            counted = _repeated(closed[workload_id]["calls"], inside)
            if counted:
                kernels[workload_id] = counted
            else:
                failures[workload_id] = "kernels without the range of their operator"
    last = next((line.strip() for line in reversed(output) if line.strip()), "")
    return Ran(kernels, failures, error_text(lines) or error_text(output) or last)


def _repeated(calls: Sequence[int], kernels: Iterable[Metrics]) -> list[tuple[Metrics, int]]:
    """Each kernel with how often it runs: only distinct calls were made. None where a kernel's call is unknown."""
    times = Counter(calls)
    repeats = len(times) != len(calls)
    found = []
    for kernel in kernels:
        if kernel.call is None and repeats:
            return []
        found.append((kernel, times.get(kernel.call, 1) if kernel.call is not None else 1))
    return found


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _lines(folder / "events.jsonl") if line.endswith("\n")]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []


class Results:
    """The file: metrics, names of kernels, and for each workload a row for each kernel."""

    def __init__(self, metrics: Sequence[str], facts: dict[str, object]) -> None:
        self._metrics = list(metrics)
        self._facts = facts
        self._names: dict[str, int] = {}
        self._workloads: list[dict[str, object]] = []

    def add(self, network: str, workload: Workload, ran: Ran) -> bool:
        """Add a workload, with its kernels or the reason why there are none; return whether there are."""
        kernels = ran.kernels.get(workload.id, [])
        row: dict[str, object] = {"network": network, **workload.to_json()}
        if kernels:
            row["kernels"] = [
                [self._name(kernel.name), times, *(kernel.values.get(metric) for metric in self._metrics)]
                for kernel, times in kernels
            ]
        else:
            row["error"] = ran.failures.get(workload.id) or "the time was over, or ncu ended early"
        self._workloads.append(row)
        return bool(kernels)

    def _name(self, name: str) -> int:
        return self._names.setdefault(name[:_NAME_LENGTH], len(self._names))

    def write(self, path: Path) -> None:
        """Write the file, completely or not at all."""
        values = {
            "version": VERSION,
            **self._facts,
            "metrics": self._metrics,
            "names": list(self._names),
            "workloads": self._workloads,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(values, separators=(",", ":")).encode())


def run(
    out: Path,
    seconds: float,
    dtypes: Sequence[str] = DTYPES,
    *,
    names: Sequence[str] = (),
    cache_control: str = "all",
    brief: bool = False,
    device: str = "cuda",
) -> Results:
    """Probe, then count the networks in one precision after the other, as far as the time reaches.

    In ``brief`` nothing is probed, and time, bytes and the tensor pipe are counted alone.
    """
    end, ncu = time.monotonic() + seconds, find_ncu()
    probed, metrics = (None, list(BRIEF)) if brief else _probe(ncu, end, cache_control, device)
    facts = {"date": datetime.now(UTC).date().isoformat(), "cache_control": cache_control, "device": "h200", "ncu": ncu}
    results = Results(metrics, {**facts, "clock_control": "none"})
    if probed is not None:
        for workload in PROBES:
            results.add("", workload, probed)
    results.write(out)
    for dtype in dtypes:
        left = end - time.monotonic() - _PRINT_S / 2
        if left < _START_S:
            log.warning("no time for %s", dtype)
            break
        chosen = [(name, Workload(spec, batch, shape, dtype)) for name, spec, shape, batch in NETWORKS
                  if not names or name in names]  # fmt: skip
        ran = count(
            [workload for _, workload in chosen], metrics, left, ncu=ncu, cache_control=cache_control, device=device
        )
        counted = [name for name, workload in chosen if results.add(name, workload, ran)]
        log.info("%s: %d of %d networks; %s", dtype, len(counted), len(chosen), ran.error)
        results.write(out)
    return results


def _probe(ncu: str, end: float, cache_control: str, device: str) -> tuple[Ran, list[str]]:
    """Known work, by the first list of metrics that counts anything; the metrics that it gave."""
    said = ""
    for metrics in metric_sets(known_metrics(ncu)):
        left = min(_PROBE_S, end - time.monotonic())
        if left < _START_S:
            break
        ran = count(PROBES, metrics, left, ncu=ncu, cache_control=cache_control, device=device)
        given = {name for kernels in ran.kernels.values() for kernel, _ in kernels for name in kernel.values}
        if given.issuperset(_CORE):
            log.info("metrics: %s", ", ".join(name for name in metrics if name in given))
            return ran, [name for name in metrics if name in given]
        said = ran.error or said
        log.warning("these metrics count nothing (%s): %s", said, ", ".join(metrics))
    raise MeasurementError(f"ncu counts nothing: {said or 'it printed no kernels'}")


def main() -> int:
    """Count and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--networks", default="", help="only these, separated by commas")
    parser.add_argument("--cache-control", default="all", choices=("all", "none"))
    parser.add_argument("--brief", action="store_true", help="time, bytes and the tensor pipe alone, without probes")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)7.0f ms %(message)s")
    names = [name for name in chosen.networks.split(",") if name]
    how = {"cache_control": chosen.cache_control, "brief": chosen.brief}
    try:
        run(chosen.out, chosen.seconds, chosen.dtypes.split(","), names=names, **how)
    except ForetellError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
