"""Groups on two cores are read, judged on architectures that were not seen, and fitted."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.sharing import cores
from foretell.training import core_sharing
from small.small_store import write_table

pytest.importorskip("pyarrow")


def group(name: str, widths: list[int], slowdowns: list[float], method: str = "cores") -> list[dict[str, object]]:
    rows = []
    for member, (width, slowdown) in enumerate(zip(widths, slowdowns, strict=True)):
        facts = {"workload_id": f"w{width}", "spec": f"synthetic:tiny?width={width}", "family": "tiny"}
        facts |= {"mode": "inference", "dtype": "fp32", "batch_size": 1, "status": "ok", "solo_ms": float(width)}
        own = {"campaign_id": "c", "group_id": name, "method": method, "members": len(widths), "member": member}
        rows.append({**facts, **own, "together_ms": slowdown * width})
    return rows


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Pairs, and trios of which one member has a core to itself; one group failed, one ran on a GPU."""
    rows = []
    for width in range(1, 40):
        rows += group(f"pair {width}", [width, width + 40], [1.2, 1.2])
        rows += group(f"trio {width}", [width, width + 40, width + 80], [1.0, 2.0, 2.0])
    failed = group("failed", [1, 2], [9.0, 9.0])
    failed[1]["status"] = "crash"
    write_table(tmp_path / "a", "colocation", [*rows, *failed, *group("gpu", [1, 2], [9.0, 9.0], "mps")])
    return tmp_path


def test_a_trio_has_one_slowdown_and_a_pair_has_two(store: Path) -> None:
    groups = core_sharing.read_groups(store)
    assert len(groups) == 2 * 39
    pair, trio = (next(one for one in groups if len(one.rows) == count) for count in (2, 3))
    assert np.exp(pair.logs) == pytest.approx([1.2, 1.2])
    # one, a half and a half of a core's work: two cores between three
    assert np.exp(trio.logs) == pytest.approx([1.5] * 3)
    assert np.exp(trio.member_logs) == pytest.approx([1.0, 2.0, 2.0])


def test_nothing_is_faster_beside_others_than_alone(tmp_path: Path) -> None:
    rows = [*group("a", [1, 2], [0.8, 1.1]), *group("b", [1, 3], [1.2, 1.1])]
    write_table(tmp_path / "a", "colocation", rows)
    first, second = core_sharing.read_groups(tmp_path)
    assert np.exp(first.logs) == pytest.approx([1.0, 1.1])
    assert np.exp(second.logs)[0] == pytest.approx(1.5)


def test_train_writes_a_model_and_the_report_has_the_baseline(store: Path, tmp_path: Path) -> None:
    judged = core_sharing.judge(core_sharing.read_groups(store))
    assert all(1 <= one.unseen <= one.members for one in judged)
    assert np.mean([one.error for one in judged]) < 0.01
    model = cores.CoreModel.load(core_sharing.train(store, "cpu", tmp_path, tmp_path).read_bytes())
    # the interval knows that one of three may have a core to itself
    assert model.slowdown(3).low == pytest.approx(1.0)
    text = core_sharing.write_report(core_sharing.evaluate(store, "cpu", tmp_path), tmp_path).read_text()
    for word in ("cores: slowdown", "time on the cores alone", "cores, the worst twenty"):
        assert word in text


def test_a_store_without_such_groups_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "a", "colocation", group("gpu", [1, 2], [9.0, 9.0], "mps"))
    with pytest.raises(DataError, match="No group shared cores"):
        core_sharing.read_groups(tmp_path)
