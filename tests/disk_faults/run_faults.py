"""Let one change of a scenario fail, look, resume, and look again.

``python -m disk_faults.run_faults FOLDER`` prints the outcomes of a sample as JSON.
"""

import importlib
import importlib.util
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from disk_faults.scenarios import SCENARIOS, Scenario, acknowledge, acknowledged
from disk_faults.shim import KINDS, Disk, failing, in_child

# imported once for all children: that takes longer than what is tested
for _library in ("pyarrow.parquet", "pyarrow.compute", "pyarrow.dataset", "pyarrow.pandas_compat", "duckdb", "pandas"):
    if importlib.util.find_spec(_library.partition(".")[0]):
        importlib.import_module(_library)

PLACES = (0.3, 0.6, 0.85, 1.0)  # one for each kind; the next scenario begins with another


@dataclass
class Outcome:
    """What one fault did. All counts have to be 0 and ``error`` empty."""

    scenario: str
    kind: str
    point: int
    lost: int = 0
    doubled: int = 0
    shortened: int = 0
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.shortened or self.error)


def count_changes(scenario: Scenario, folder: Path) -> int:
    """How many changes of files a scenario makes."""
    fresh(scenario, folder)

    def work() -> int:
        disk = Disk()
        with failing(disk):
            scenario.act(folder, lambda _: None)
        return disk.changes

    code, changes = in_child(work)
    assert code == 0, changes
    assert changes > 0
    return int(changes)


def fresh(scenario: Scenario, folder: Path) -> None:
    """The state before, made once and copied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name(folder.name + ".safe").unlink(missing_ok=True)
    prepared = folder.with_name(f"prepared {scenario.name}")
    if not prepared.exists():
        code, answer = in_child(lambda: bool(scenario.prepare(prepared)))
        assert code == 0, answer
    shutil.copytree(prepared, folder)


def run_fault(scenario: Scenario, folder: Path, kind: str, point: int) -> Outcome:
    """One fault."""
    outcome = Outcome(scenario.name, kind, point)
    fresh(scenario, folder)

    def act() -> None:
        with failing(Disk(point, kind)):
            scenario.act(folder, lambda name: acknowledge(folder, name))

    in_child(act)  # it fails or is killed, and may also succeed: not every refusal matters
    code, found = in_child(lambda: scenario.found(folder))
    if code:
        outcome.error = f"after the fault: {found}"
        return outcome
    safe = {*acknowledged(folder)}
    outcome.doubled += sum(count > 1 for count in found.values())
    if scenario.whole:
        # a graph may be absent from the cache: it is then converted again
        outcome.lost += not {*found} <= {*scenario.before, *scenario.wanted, "none"}
    else:
        outcome.lost += sum(name not in found for name in safe)
        outcome.shortened += sum(name not in found for name in scenario.before)
    code, answer = in_child(lambda: bool(scenario.act(folder, lambda _: None)))
    if code:
        outcome.error = f"resuming: {answer}"
        return outcome
    code, found = in_child(lambda: scenario.found(folder))
    if code:
        outcome.error = f"after resuming: {found}"
        return outcome
    outcome.lost += sum(name not in found for name in scenario.wanted)
    outcome.doubled += sum(count > 1 for count in found.values())
    return outcome


def all_faults(folder: Path, scenarios: tuple[Scenario, ...] = SCENARIOS) -> Iterator[tuple[Scenario, str, int]]:
    """Every scenario, kind and point."""
    for scenario in scenarios:
        changes = count_changes(scenario, folder / "count")
        for kind in KINDS:
            for point in range(1, changes + 1):
                yield scenario, kind, point


def sample(folder: Path) -> Iterator[Outcome]:
    """Every scenario and kind, at one point each."""
    for turn, scenario in enumerate(SCENARIOS):
        changes = count_changes(scenario, folder / "count")
        for number, kind in enumerate(KINDS):
            point = max(1, round(changes * PLACES[(number + turn) % len(PLACES)]))
            yield run_fault(scenario, folder / "fault", kind, point)


if __name__ == "__main__":
    logging.disable()  # every damaged record would be named
    json.dump([asdict(outcome) for outcome in sample(Path(sys.argv[1]))], sys.stdout)
