from lab.papers.arithmetic import SUMS, Sum, impossible


def test_what_does_not_follow_is_known():
    assert {entry.source for entry in SUMS if not entry.agrees} == {"D Table 5", "L Table 6"}
    assert impossible() == ["MNASNet"]


def test_a_digit_decides():
    assert Sum("", "", 9.51, 9.504, 2).agrees
    assert not Sum("", "", 9.51, 9.53, 2).agrees
