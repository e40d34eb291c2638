import json

import pytest
from click.testing import CliRunner

from foretell.cli.data import app
from small.small_store import write_table

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

FACTS = {
    "campaign_id": "c", "workload_id": "w", "spec": "synthetic:mlp?act=relu&widths=8-16-4", "family": "mlp",
    "input_shape": "8", "mode": "inference", "status": "ok",
}  # fmt: skip


def _run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_graphs_are_made_once_and_kernels_find_their_nodes(tmp_path):
    write_table(tmp_path, "measurements", [FACTS])
    kernel = {"sequence": 0, "name_id": 1, "op_index": 0, "op": "aten::linear", "module": "0", "duration_us": 5.0}
    write_table(tmp_path, "kernels", [FACTS | kernel])
    made = _run("graphs", "--store", tmp_path, "--journal", tmp_path / "journal")
    assert (made["needed"], made["made"], made["failed"]) == (1, 1, 0)
    assert _run("graphs", "--store", tmp_path, "--journal", tmp_path / "journal")["made"] == 0
    linked = _run("link", "--store", tmp_path)
    assert (linked["traces"], linked["linked"], linked["tied"]) == (1, 1, 1.0)
    assert (tmp_path / "graphs" / "kernel_nodes.parquet").exists()
