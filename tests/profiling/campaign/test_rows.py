import logging

from foretell.profiling.campaign.journal import read_records
from foretell.profiling.campaign.rows import CampaignRows
from foretell.profiling.campaign.selection import Chosen
from foretell.profiling.workload import Workload

CHOSEN = Chosen(Workload("synthetic:mlp?act=relu&widths=4-4", 2, (4,), "fp32", family="synthetic-mlp"), "tiny")


def test_rows_name_their_campaign_their_workload_and_their_reason(tmp_path, caplog):
    rows = CampaignRows(tmp_path, "slices")
    rows.open("cpu", "abc", 3)
    rows.write(CHOSEN, "ok", {"percent": 10.0})
    rows.write(CHOSEN, "oom", {"percent": 20.0, "error": "no memory"})
    with caplog.at_level(logging.INFO, "foretell.profiling"):
        rows.close()
    assert "1 × oom: no memory" in caplog.text
    head, first, second = read_records(tmp_path)
    assert (head["kind"], head["runtime"], head["workers"]) == ("campaign", "cpu", 3)
    assert first["campaign_id"] == head["campaign_id"] == rows.campaign_id
    assert first["workload_id"] == CHOSEN.workload.id
    assert first["input_shape"] == [4]
    assert (first["kind"], first["status"], first["error"], first["part"]) == ("slices", "ok", None, "tiny")
    assert first["measured_at"].endswith("+00:00")
    assert second["error"] == "no memory"
    assert rows.counts == {"ok": 1, "oom": 1}
