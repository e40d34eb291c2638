"""Profiling: the rows of a campaign with one table besides measurements, written into its journal."""

import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from foretell.profiling.campaign.journal import Journal, record_of
from foretell.profiling.campaign.selection import Chosen
from foretell.profiling.environment import describe

log = logging.getLogger("foretell.profiling")


class CampaignRows:
    """Writes rows of one table."""

    def __init__(self, out: Path, table: str) -> None:
        self._journal = Journal(out)
        self._table = table
        self.campaign_id = uuid.uuid4().hex[:12]
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    def open(self, device: str, commit: str, workers: int, **more: object) -> None:
        """Open the journal and write the header of the campaign, with the fields in ``more``."""
        self._journal.open()
        runtime = "cpu" if device == "cpu" else "cuda-graph"
        header = {"kind": "campaign", "campaign_id": self.campaign_id, "runtime": runtime, "workers": workers}
        self._journal.append(header | more | describe(device, commit))

    def write(self, chosen: Chosen, status: str, values: Mapping[str, object], table: str = "") -> None:
        """Write one row, of the campaign's table or of another."""
        line = record_of(table or self._table, self.campaign_id, chosen.workload, chosen.part, status) | {"error": None}
        self._journal.append(line | dict(values))
        self.counts[status] += 1
        if status != "ok":
            self.reasons[f"{status}: {str(values.get('error') or '')[:120]}"] += 1

    def write_trace(self, kind: str, workload_id: str, kernels: Mapping[str, object]) -> None:
        """Write the kernels that belong to a row."""
        self._journal.append_trace(
            {"kind": kind, "campaign_id": self.campaign_id, "workload_id": workload_id, "kernels": kernels}
        )

    def write_rows(self, kind: str, workload_id: str, columns: Mapping[str, object]) -> None:
        """Write the rows of another table that belong to a row, in columns."""
        self._journal.append_trace(
            {"kind": kind, "campaign_id": self.campaign_id, "workload_id": workload_id, **columns}
        )

    def close(self) -> None:
        """Close the journal and log what could not be measured."""
        self._journal.close()
        for reason, count in self.reasons.most_common(12):
            log.info("%5d × %s", count, reason)
