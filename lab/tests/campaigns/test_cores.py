import pytest

from foretell.errors import MeasurementError
from lab.campaigns.cores import core_sets


def topology_of(folder, siblings):
    for core, text in siblings.items():
        (folder / f"cpu{core}" / "topology").mkdir(parents=True)
        (folder / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")
    return folder


def test_sets_have_two_cores_each_and_no_two_threads_of_one_core(tmp_path):
    assert core_sets(4, range(8), tmp_path) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert core_sets(2, range(8), tmp_path) == [(0, 1), (2, 3)]
    threads = topology_of(tmp_path / "threads", {core: f"{core // 2 * 2}-{core // 2 * 2 + 1}" for core in range(8)})
    assert core_sets(4, range(8), threads) == [(0, 2), (4, 6)]
    assert core_sets(4, {1, 3, 5}, threads) == [(1, 3)]


def test_too_few_cores_are_refused(tmp_path):
    with pytest.raises(MeasurementError, match="may use 1 core; a group shares 2"):
        core_sets(1, [3], tmp_path)
    with pytest.raises(MeasurementError, match="core_sets = 1 or more"):
        core_sets(0, range(4), tmp_path)
