"""Workflows: run a plan's campaign, turn its journal into tables, and append them to a store."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.errors import DeviceError, InputError, MeasurementError
from foretell.files import locked
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import RECORDS
from foretell.profiling.campaign.plan import Plan, check_workers, read_plan
from foretell.profiling.campaign.progress import Progress
from foretell.registry import Registry, did_you_mean

CAMPAIGNS = Registry(
    "kind of campaign",
    {
        "measurements": "foretell.profiling.campaign.measurements:run",
        "slices": "foretell.profiling.replays.slices:run",
        "compiled": "foretell.profiling.replays.compiled:run",
    },
)
DEFAULT_FOLDER = "campaigns"
NO_LIMIT_S = 30 * 24 * 3600.0  # the budget of a plan without one
_DEVICES = ("cuda", "cpu")
_POLL_S = 1.0

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Collected:
    """The result of a campaign. ``appended`` counts the rows that were new to the store, by table."""

    out: Path
    counts: dict[str, int]
    rows: dict[str, int]
    appended: dict[str, int]
    interrupted: bool

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell collect --json`` prints."""
        return {**vars(self), "out": str(self.out)}


def collect(
    plan: str | Path,
    *,
    out: str | Path | None = None,
    store: str | Path | None = None,
    seconds: float | None = None,
    device: str = "cuda",
    skip: Sequence[str | Path] = (),
    workers: tuple[int, int] | None = None,
    limit: int = 0,
    again: int = 0,
    unsure: str | None = None,
    ray: str | None = None,
    commit: str = "",
    on_progress: OnProgress = lambda _: None,
) -> Collected:
    """Measure what a plan asks for. A second call with the same arguments continues; nothing is lost or measured twice.

    Args:
        plan: A TOML file.
        out: The folder of the journal and the tables; ``campaigns/NAME`` by default.
        store: A folder of Parquet files or ``postgresql://…`` that the tables are appended to.
        seconds: Stop and write everything after so many seconds; the plan's budget by default.
        device: cuda or cpu.
        skip: Folders or Parquet files of measurements that are done.
        workers: The numbers of processes that measure and that trace; the plan's by default.
        limit: Stop after so many measurements.
        again: Measure so many of the skipped workloads once more.
        unsure: A device; families with large errors of its predictor are measured more often.
        ray: The address of a Ray cluster, or ``local``.
        commit: The commit of the code, written into every record.
        on_progress: Called about twice a second.

    >>> collect("absent.toml")
    Traceback (most recent call last):
    ...
    foretell.errors.InputError: Cannot read the plan absent.toml: No such file or directory.
    """
    from foretell.workflows.data import write_tables  # imports numpy, which predictions do not need

    began = time.monotonic()
    campaign_plan = read_plan(Path(plan))
    if workers is not None:
        measure, trace = workers
        campaign_plan = replace(campaign_plan, workers=replace(campaign_plan.workers, measure=measure, trace=trace))
        check_workers(campaign_plan.workers)
    if limit < 0 or again < 0:
        raise InputError(f"The limit is {limit} and the number of repetitions is {again}; both must be 0 or more.")
    _check(campaign_plan, device, seconds, ray, again)
    folder = Path(out) if out is not None else Path(DEFAULT_FOLDER) / Path(plan).stem
    places = tuple(Path(place) for place in skip)
    if store is not None:
        # A store that cannot be used must fail now, not after hours of measuring.
        try_store(str(store))
    budget_s = seconds or campaign_plan.seconds or NO_LIMIT_S
    errors = errors_by_family(unsure) if unsure is not None else {}
    job = Job(campaign_plan, folder, device, budget_s, began, places, commit, limit, again, on_progress, errors)
    with _locked_folder(folder):
        counts, interrupted = _run(job, ray)
        # what the journal has lost is not lost where the tables still have it
        rows = write_tables(folder, fewer="keep") if (folder / RECORDS).exists() else {}
        appended = append_to(str(store), folder) if store is not None and rows else {}
    return Collected(folder, counts, rows, appended, interrupted)


def _check(plan: Plan, device: str, seconds: float | None, ray: str | None, again: int) -> None:
    if plan.kind not in CAMPAIGNS:
        raise InputError(
            f"Campaigns of the kind {plan.kind!r} belong to the laboratory: run python -m lab collect in a checkout."
        )
    if device not in _DEVICES:
        raise DeviceError(f"Cannot measure on {device!r}.{did_you_mean(device, _DEVICES)}")
    if seconds is not None and seconds <= 0:
        raise InputError(f"The budget is {seconds:g} s; it must be above 0.")
    if ray is not None and plan.kind != "measurements":
        raise InputError(f"--ray runs plans of the kind 'measurements', not {plan.kind!r}.")
    if again and (ray is not None or plan.kind != "measurements"):
        raise InputError("--again is for plans of the kind 'measurements' on one machine.")
    # Containers may have the device file without nvidia-smi.
    if device == "cuda" and ray is None and not (shutil.which("nvidia-smi") or Path("/dev/nvidiactl").exists()):
        raise DeviceError("There is no NVIDIA GPU on this machine. Use --device cpu, or --ray with a cluster.")


def errors_by_family(device: str) -> dict[str, float]:
    """The held-out error of the best predictor of a device, by family."""
    from foretell.devices import find_device
    from foretell.predictors import best_predictor
    from foretell.predictors.fitted_files import shipped_index

    device_id = find_device(device).id
    fitted = shipped_index().get(device_id)
    if fitted is None:
        raise InputError(f"No predictor is fitted to {device_id}, so its errors are not known. Leave out --unsure.")
    errors: dict[str, float] = fitted[best_predictor(device_id)]["held_out_by_family"]
    return errors


def _run(job: Job, ray: str | None) -> tuple[dict[str, int], bool]:
    """Run a campaign: the number of workloads by status, and whether Ctrl-C stopped it. Finished workloads are kept."""
    try:
        if ray is not None:
            from foretell.profiling.campaign.ray_cluster import RayCampaign

            return RayCampaign(job, ray).run(), False
        run: Callable[[Job], dict[str, int]] = CAMPAIGNS.load(job.plan.kind)
        with nullcontext() if job.plan.kind == "measurements" else _watched(job):
            return run(job), False
    except KeyboardInterrupt:
        return {}, True


@contextmanager
def _watched(job: Job) -> Iterator[None]:
    """Report the progress of a campaign that does not report it itself, by counting the lines of its journal."""
    path, stop = job.out / RECORDS, threading.Event()
    before = _lines(path)

    def watch() -> None:
        while not stop.wait(_POLL_S):
            finished = max(_lines(path) - before - 1, 0)  # one line is the header of the campaign
            job.on_progress(Progress(finished, 0, None, before, 0, job.elapsed_s, job.seconds))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder: two campaigns in it would measure everything twice."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except BlockingIOError as error:
            raise MeasurementError(f"Another campaign is writing to {folder}. Choose another --out.") from error
        except OSError as error:
            raise MeasurementError(f"Cannot write to {folder}: {error.strerror}. Choose another --out.") from error
        yield


def try_store(store: str) -> None:
    """Raise an error if a store cannot be used, before any time is spent on measuring."""
    from foretell.datasets import open_store

    opened = open_store(store)
    try:
        opened.tables()
        opened.query("SELECT 1")
    finally:
        opened.close()


def append_to(store: str, folder: Path) -> dict[str, int]:
    """Append a campaign's tables to a store; rows that it already has are skipped."""
    if "://" not in store and Path(store).resolve() in (folder.resolve(), *folder.resolve().parents):
        return {}  # the folder is inside the store, which therefore has the tables already
    from foretell.workflows.data import merge_stores

    return merge_stores([str(folder)], store)
