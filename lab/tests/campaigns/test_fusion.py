import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.optional import available
from foretell.profiling.campaign import schedule
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records, read_traces
from foretell.profiling.campaign.plan import Fusion, Limits, Part, Plan, read_plan
from foretell.profiling.zoos.zoo import Entry
from lab.campaigns.fusion import FusionCampaign, lay_out

COMMAND = (sys.executable, str(Path(__file__).parents[3] / "tests" / "fakes" / "fake_fusion_worker.py"))
PLANS = Path(__file__).parents[3] / "plans"


class FakeZoo:
    """Models that exist by name only."""

    def __init__(self, names):
        self._names = names

    def entries(self, _part, _seed):
        return [Entry(f"fake:{name}", name.rstrip("0123456789"), (3, 8, 8)) for name in self._names]


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """Runs a plan over models of the given names; returns how they ended."""

    def run(names, backends=("inductor",), *, out=tmp_path / "out", skip=(), limit=0, command=COMMAND, silent_s=600.0):
        monkeypatch.setattr(schedule, "load_zoo", lambda _name: FakeZoo(names))
        part = Part("fake", 1.0, ("timm",), per_model=1)
        plan = Plan(1, (part,), "fusion", limits=Limits(timeout_s=silent_s), fusion=Fusion(tuple(backends), 2))
        return FusionCampaign(Job(plan, out, "cpu", 600.0, time.monotonic(), skip, "", limit), command).run()

    return run


def _statuses(folder):
    rows = [line for line in read_records(folder) if line["kind"] == "fusion_graphs"]
    return Counter(f"{str(row['spec']).partition(':')[2].rstrip('0123456789')} {row['status']}" for row in rows)


def test_every_model_is_compiled_once_by_every_backend(campaign, tmp_path):
    counts = campaign([f"net{i}" for i in range(10)], ["inductor", "onnxruntime"])
    assert counts["ok"] == 20
    header, *rows = read_records(tmp_path / "out")
    assert header["kind"] == "campaign"
    assert Counter(row["backend"] for row in rows) == {"inductor": 10, "onnxruntime": 10}
    assert {row["campaign_id"] for row in rows} == {header["campaign_id"]}
    traces = list(read_traces(tmp_path / "out"))
    assert {trace["fusion_id"] for trace in traces} == {row["fusion_id"] for row in rows}
    assert {trace["kind"] for trace in traces} == {"fusion_nodes"}
    assert traces[0]["edges"] == {"source": [0], "target": [1], "fused": [True]}


def test_deaths_hangs_and_refusals_are_recorded_and_retired_workers_replaced(campaign, tmp_path):
    names = ["net1", "crash1", "hang1", "broken1", "retire1", "retire2", "net2", "net3"]
    campaign(names, silent_s=3.0)
    assert _statuses(tmp_path / "out") == {
        "net ok": 3, "crash crash": 1, "hang timeout": 1, "broken build_error": 1, "retire ok": 2,
    }  # fmt: skip


def test_what_is_done_is_not_compiled_again(campaign, tmp_path):
    names = [f"net{i}" for i in range(8)]
    campaign(names, limit=3)
    first = sum(_statuses(tmp_path / "out").values())
    assert 3 <= first < 8
    campaign(names)
    assert _statuses(tmp_path / "out") == {"net ok": 8}
    assert campaign(names, out=tmp_path / "again", skip=[tmp_path / "out"]) == {}


def test_workers_that_never_start_end_the_campaign(campaign):
    with pytest.raises(MeasurementError, match="No worker could start"):
        campaign(["net1"], command=(sys.executable, "-c", "raise SystemExit(1)"))


def test_the_plans_are_of_one_backend_each_and_leave_cores_for_others():
    plans = [read_plan(PLANS / f"fusion-{name}.toml") for name in ("inductor", "onnxruntime")]
    assert [plan.fusion.backends for plan in plans] == [("inductor",), ("onnxruntime",)]
    assert all(plan.kind == "fusion" and plan.fusion.processes <= 10 for plan in plans)
    assert {dtype for part in plans[1].parts for dtype in part.dtypes} == {"fp32"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fusion-inductor", "fusion-onnxruntime"])
def test_the_plans_have_enough_of_every_part(name):
    if not (available("timm") and available("transformers")):
        pytest.skip("timm and transformers are extras: pip install 'foretell[vision,hf]'")
    plan = read_plan(PLANS / f"{name}.toml")
    groups = list(lay_out(plan, set()))
    assert len(groups) > 1300
    beginning = Counter(group.part for group in groups[:400])
    assert beginning["vision"] > 200
    assert min(beginning["synthetic"], beginning["encoders"]) > 25
    assert {group.role for group in groups} == set(plan.fusion.backends)
