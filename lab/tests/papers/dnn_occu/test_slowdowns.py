from lab.papers.dnn_occu.slowdowns import groups, rank_correlation


def member(workload, group="g", **others):
    plain = {
        "campaign_id": "c", "group_id": group, "method": "mps", "members": 2, "workload_id": workload,
        "percentage": 100.0, "solo_ms": 1.0, "together_ms": 2.0, "status": "ok",
    }  # fmt: skip
    return plain | others


def test_only_whole_groups_whose_occupancies_are_counted_tell_something():
    rows = [
        member("a"), member("b", together_ms=4.0), member("a", "half"), member("a", "unknown"), member("z", "unknown"),
        member("a", "limited", percentage=25.0), member("b", "limited"), member("a", "slices", method="time-slicing"),
    ]  # fmt: skip
    assert groups(rows, {"a": 30.0, "b": 50.0}) == [(80.0, 3.0)]


def test_ranks_decide():
    assert rank_correlation([(1, 1), (2, 100), (3, 1000)]) == 1
