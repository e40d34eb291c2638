"""Memory, time and roofline of a model on its device."""

import re
from dataclasses import replace

from foretell.records import Estimate
from foretell.rendering.html.report_work import memory_section, roofline_section, time_section
from small.tiny_report import bare_report, tiny_report


def widths(page: str) -> list[float]:
    return [float(width) for width in re.findall(r'class="(?:c\d|over-capacity)" style="width:([\d.]+)%', page)]


def test_bars_of_memory_are_to_scale() -> None:
    page = memory_section(tiny_report())
    assert widths(page) == [50.0, 25.0, 75.0]
    assert "50.0% of 15.6 GiB" in page
    assert "alarm" not in page


def test_what_does_not_fit_is_said_and_drawn() -> None:
    report = tiny_report()
    assert report.memory is not None
    over = memory_section(replace(report, memory=replace(report.memory, need=Estimate(20000.0, 18000.0, 24000.0))))
    assert "It does not fit: 19.5 GiB are needed" in over
    assert widths(over)[:2] == [66.67, 16.67]  # of the largest that it may need
    near = memory_section(replace(report, memory=replace(report.memory, need=Estimate(15000.0, 14000.0, 17000.0))))
    assert "It perhaps does not fit: up to 16.6 GiB" in near


def test_operators_beyond_the_shown_ones_are_summed() -> None:
    page = time_section(tiny_report())
    assert page.count("memory-bound") == 8
    assert "2 more" in page
    assert "75% likely" in page
    assert "400" in page  # µs of the kernel


def test_missing_parts_say_why() -> None:
    bare = bare_report()
    assert "does not predict memory" in memory_section(bare)
    assert "why no kernels" in time_section(bare)
    assert "does no work" in time_section(bare)
    assert "why no roofline" in roofline_section(bare)
