from foretell.profiling.campaign.progress import Progress


def test_the_end_is_the_nearer_of_work_and_budget():
    assert Progress(10, 1, 30, 0, 0, 20.0, 500.0).left_s == 60.0
    assert Progress(10, 1, 30, 0, 0, 20.0, 25.0).left_s == 5.0
    assert Progress(10, 1, 30, 0, 0, 30.0, 25.0).left_s == 0.0


def test_without_a_rate_the_budget_is_all_that_is_known():
    assert Progress(0, 0, 30, 0, 0, 20.0, 50.0).left_s == 30.0
    unknown = Progress(5, 0, None, 0, 0, 20.0, 50.0)
    assert (unknown.total, unknown.left_s) == (None, 30.0)
    assert Progress(5, 0, 7, 100, 0, 20.0, 50.0).total == 12
