"""Let every write of journals, tables, stores and caches fail once, in four ways; count what is lost.

usage: python benchmarks/faults.py [--only SCENARIO] [--json FILE]
"""

import argparse
import json
import logging
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from disk_faults.run_faults import all_faults, run_fault
from disk_faults.scenarios import SCENARIOS
from disk_faults.shim import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS], action="append")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    given = parser.parse_args()
    logging.disable()  # every damaged record would be named
    scenarios = tuple(s for s in SCENARIOS if not given.only or s.name in given.only)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="foretell-faults-") as made:
        for scenario, kind, point in all_faults(Path(made), scenarios):
            outcomes.append(run_fault(scenario, Path(made) / "fault", kind, point))
            if not outcomes[-1].is_good:
                print(outcomes[-1], flush=True)
    counted = ("lost", "doubled", "shortened")
    print(f"{'scenario':16}" + "".join(f"{title:>10}" for title in (*KINDS, *counted, "errors")))
    for name in [scenario.name for scenario in scenarios] + ["all"]:
        own = [outcome for outcome in outcomes if name in (outcome.scenario, "all")]
        kinds = Counter(outcome.kind for outcome in own)
        numbers = [*(kinds[kind] for kind in KINDS), *(sum(getattr(o, what) for o in own) for what in counted)]
        numbers.append(sum(bool(outcome.error) for outcome in own))
        print(f"{name:16}" + "".join(f"{number:10}" for number in numbers))
    print(f"{len(outcomes)} faults")
    if given.json:
        given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes]))
    sys.exit(not all(outcome.is_good for outcome in outcomes))


if __name__ == "__main__":
    main()
