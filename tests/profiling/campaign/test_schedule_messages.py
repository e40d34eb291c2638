import json
from dataclasses import asdict

import pytest

from foretell.profiling.campaign.plan import Limits, Measuring
from foretell.profiling.campaign.schedule import Group, group_from_json, group_to_json, settings_from_json
from foretell.profiling.workload import Workload

SPEC = "synthetic:mlp?widths=8-4"
WORKLOADS = (
    Workload(SPEC, 1, (8,), "fp32", family="mlp"),
    Workload(SPEC, 2, (8,), "bf16", "training", "adamw", family="mlp"),
)


def test_a_group_arrives_as_it_was_sent():
    group = Group("synthetic", SPEC, WORKLOADS, 1, "trace")
    sent = json.loads(json.dumps(group_to_json(group, {WORKLOADS[1].id, "of another group"})))
    arrived, energy = group_from_json(sent)
    assert arrived == group
    assert [workload.family for workload in arrived.workloads] == ["mlp", "mlp"]
    assert energy == {WORKLOADS[1].id}


def test_settings_arrive_as_they_were_sent():
    measuring, limits = Measuring(replays=3, max_cv=0.5), Limits(max_latency_ms=7.0)
    sent = json.loads(json.dumps({"measuring": asdict(measuring), "limits": asdict(limits), "device": "cpu"}))
    assert settings_from_json(sent) == (measuring, limits)


def test_an_unknown_setting_is_not_ignored():
    with pytest.raises(TypeError, match="replay"):
        settings_from_json({"measuring": {"replay": 3}, "limits": {}})
