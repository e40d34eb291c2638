"""Lab: co-location: captured steps of different processes replayed at the same time, under MPS and time-slicing.

Every process prepares its workloads once; each workload is replayed alone; then groups are replayed one after the
other. Both methods see the same groups. On a CPU the method is ``cores``: two or three processes that keep to two
cores; several such sets work side by side. Under MPS a plan may limit processes to a percentage of the multiprocessors;
``solo_ms`` is then the time alone under that limit. ``together_ms`` and ``solo_ms`` are means: under time-slicing, most
replays are either not interrupted at all or by whole slices of another process, and throughput follows the mean.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.processes.child import Message
from foretell.profiling.campaign.done import done_keys
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.rows import CampaignRows
from foretell.profiling.campaign.selection import Chosen, choose
from foretell.profiling.replays.mps import PERCENTAGE, MpsDaemon
from foretell.profiling.replays.workers import WORKER, ReplayWorkers
from lab.campaigns.colocation_groups import WHOLE, Candidate, Together, draw_groups, equal_groups, group_id
from lab.campaigns.colocation_stage import Stage
from lab.campaigns.cores import CORES, core_sets
from lab.campaigns.mixes import TABLE as MIXES
from lab.campaigns.mixes import draw_mixes, run_mix

log = logging.getLogger("foretell.profiling")

TABLE = "colocation"
_RESERVE = 0.12
_MAX_RESERVE_S = 16.0
_MIN_REPEATS = 5
_REPORT_EVERY = 40


def run(job: Job, command: Sequence[str] = WORKER) -> dict[str, int]:
    """Measure until the time or the plan is over; ``limit`` is the number of groups for each method."""
    return ColocationCampaign(job, command).run()


class ColocationCampaign:
    """One run of a plan on one device."""

    def __init__(self, job: Job, command: Sequence[str]) -> None:
        self._job = job
        self._plan = job.plan
        self._out = job.out
        self._device = job.device
        self._stop_at = job.before_end(job.reserve_s(_RESERVE, _MAX_RESERVE_S))
        self._command = command
        self._rows = CampaignRows(job.out, TABLE)
        self._chosen: list[Chosen] = []
        # method → name of a group → its workloads
        self._groups: dict[str, dict[str, tuple[str, ...]]] = {}
        self._writing = threading.Lock()

    def run(self) -> dict[str, int]:
        """Run all methods, each with its share of the time."""
        self._out.mkdir(parents=True, exist_ok=True)
        columns = ("method", "group_id", "member", "workload_id")
        for method, group, _, workload_id in done_keys(self._job.folders, TABLE, columns):
            members = self._groups.setdefault(str(method), {})
            members[str(group)] = tuple(sorted((*members.get(str(group), ()), str(workload_id))))
        resumed = any(self._groups.values())
        self._chosen = choose(self._plan)
        self._rows.open(self._device, self._job.commit, self._plan.colocation.processes)
        methods = self._plan.colocation.methods
        count = self._job.limit or self._plan.colocation.groups
        try:
            for number, method in enumerate(methods):
                now = time.monotonic()
                # what one method leaves of its time goes to those after it
                until = now + (self._stop_at - now) / (len(methods) - number)
                known = self._groups.setdefault(method, {})
                if len(known) >= count:
                    continue
                try:
                    if method == CORES:
                        self._side_by_side(method, count, until)
                    else:
                        self._method(method, count, until, self._chosen)
                except MeasurementError as error:
                    log.warning("%s: %s", method, error)
                log.info("%s: %.0f s, %d groups", method, time.monotonic() - now, len(known))
        finally:
            self._rows.close()
        if not self._rows.counts and not resumed:
            raise MeasurementError(f"No group could be measured. See {self._out / 'workers.log'}.")
        groups = {f"groups {method}": len(members) for method, members in self._groups.items()}
        return dict(self._rows.counts) | groups

    def _side_by_side(self, method: str, count: int, until: float) -> None:
        """Every set of cores gets its share of the workloads, and measures groups of them in a thread of its own."""
        sets = core_sets(self._plan.colocation.core_sets)
        with ThreadPoolExecutor(len(sets)) as threads:
            shares = [self._chosen[number :: len(sets)] for number in range(len(sets))]
            runs = [
                threads.submit(self._method, method, count, until, *pair) for pair in zip(shares, sets, strict=True)
            ]
        errors = [error for run in runs if (error := run.exception())]
        for error in errors:
            log.warning("%s: %s", method, error)
        if len(errors) == len(runs):
            raise errors[0]

    def _method(
        self, method: str, count: int, until: float, chosen: Sequence[Chosen], cores: Sequence[int] = ()
    ) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="foretell-beside-", ignore_cleanup_errors=True) as folder,
            self._daemon(method, folder) as more,
        ):
            settings: Message = {"device": self._device, "measuring": asdict(self._plan.measuring)}
            settings |= {"memory_gib": self._plan.colocation.memory_gib, "environment": more, "cores": list(cores)}
            percentages = (self._plan.colocation.percentages if method == "mps" else ()) or (WHOLE,)
            settings["environments"] = {f"{p:g}": {PERCENTAGE: f"{p:g}"} for p in percentages if p < WHOLE}
            processes = range(self._plan.colocation.processes)
            roles = [f"{percentages[process % len(percentages)]:g}" for process in processes]
            replay_workers = ReplayWorkers(Path(folder), settings, roles, self._command)
            stage = Stage(replay_workers, chosen, until, self._plan, percentages)
            try:
                with replay_workers:
                    stage.prepare(self._partners(method, count))
                    stage.measure_alone()
                    self._mixes(stage, method, until)
                    self._together(stage, method, count, until)
            finally:
                replay_workers.save_log(self._out)

    @contextmanager
    def _daemon(self, method: str, folder: str) -> Iterator[dict[str, str]]:
        if method != "mps" or self._device == "cpu":
            yield {}
            return
        with MpsDaemon(Path(folder) / "mps") as daemon:
            yield daemon.environment

    def _partners(self, method: str, count: int) -> list[tuple[str, ...]]:
        """Groups that another method has measured and this one has not."""
        groups_of_others: dict[tuple[str, ...], None] = {}
        for other, groups in self._groups.items():
            if other != method:
                groups_of_others |= dict.fromkeys(groups.values())
        known = self._groups[method]
        measured = set(known.values())
        return [group for group in groups_of_others if group not in measured][: max(0, count - len(known))]

    def _mixes(self, stage: Stage, method: str, until: float) -> None:
        plan = self._plan
        drawn = draw_mixes(stage.candidates, plan.colocation.mixes, plan.colocation.group_sizes, plan.seed)
        for number, mix in enumerate(drawn, start=1):
            if time.monotonic() > until:
                break
            if not stage.has([job.candidate for job in mix.jobs]):
                continue
            spans, failed = run_mix(stage, mix)
            shared = {"mix_id": mix.name(method), "method": method, "max_jobs": mix.max_jobs, "jobs": len(mix.jobs)}
            for place, job in enumerate(mix.jobs):
                values: Message = shared | {"job": place, "steps": job.steps, "arrival_s": job.arrival_s}
                values |= {"percentage": job.candidate.percentage, "solo_ms": job.candidate.solo_ms}
                status, error = failed.get(place, ("skipped", "another job failed") if failed else ("ok", None))
                if place in spans:
                    values["start_s"], values["end_s"] = spans[place]
                chosen = stage.chosen[job.candidate.workload_id]
                self._rows.write(chosen, status, values | {"error": error}, MIXES)
            log.info("%s: mix %d of %d: %d jobs, %.2f s", method, number, len(drawn), len(mix.jobs), _makespan(spans))

    def _together(self, stage: Stage, method: str, count: int, until: float) -> None:
        for group in self._groups_to_measure(stage, method, count):
            known = self._groups[method]
            if time.monotonic() > until or len(known) >= count:
                break
            name = group_id(method, (member.name for member in group))
            if name in known or not stage.has(group):
                continue
            self._write(method, name, group, stage, *stage.replay(group, self._plan.colocation.together_s))
            known[name] = tuple(sorted(member.workload_id for member in group))
            if len(known) % _REPORT_EVERY == 0:
                log.info("%s: %d groups, rows %s", method, len(known), dict(self._rows.counts))

    def _groups_to_measure(self, stage: Stage, method: str, count: int) -> list[tuple[Candidate, ...]]:
        sizes = self._plan.colocation.group_sizes
        ready: dict[str, list[Candidate]] = {}
        for candidate in stage.candidates:
            ready.setdefault(candidate.workload_id, []).append(candidate)
        partners = []
        for group in self._partners(method, count):
            if all(group.count(name) <= len(ready.get(name, ())) for name in group):
                partners.append(tuple(ready[name][group[:at].count(name)] for at, name in enumerate(group)))
        # twice as many as needed: some groups lose a member before their turn
        drawn = draw_groups(stage.candidates, sizes, 2 * count, self._plan.seed)
        return partners + equal_groups(stage.candidates, sizes) + drawn

    def _write(
        self,
        method: str,
        name: str,
        group: Sequence[Candidate],
        stage: Stage,
        replays: Mapping[int, Together | None],
        failed: Mapping[int, tuple[str, str]],
    ) -> None:
        for member, candidate in enumerate(group):
            values: Message = {"group_id": name, "method": method, "members": len(group), "member": member}
            values |= {"percentage": candidate.percentage, **stage.solo[candidate.place]}
            status, error = failed.get(member, ("skipped", "another member failed") if failed else ("ok", None))
            together = replays.get(member)
            if together is not None and status == "ok":
                values |= {"together_ms": together.mean_ms, "together_median_ms": together.median_ms}
                values |= {"together_cv": together.cv, "repeats": together.repeats, "overlap_s": together.overlap_s}
            repeats = 0 if together is None else together.repeats
            if status == "ok" and repeats < _MIN_REPEATS:
                status, error = "run_error", f"{repeats} replays beside the others, {_MIN_REPEATS} are needed"
            values |= stage.paces.get(candidate.place, {})
            with self._writing:
                self._rows.write(stage.chosen[candidate.workload_id], status, values | {"error": error})


def _makespan(spans: Mapping[int, tuple[float, float]]) -> float:
    return max((end_s for _, end_s in spans.values()), default=0.0)
