"""Other batch sizes, devices and places."""

from dataclasses import replace

from foretell.rendering.html.report_choices import advice_section, batches_section, devices_section
from foretell.rendering.html.report_content import AdviceTable
from small.tiny_report import bare_report, spread, tiny_report, tiny_row


def test_batches_that_do_not_fit_are_out_of_the_curves() -> None:
    page = batches_section(tiny_report())
    assert "From batch 32 on it does not fit into 15.6 GiB." in page
    assert page.count("<svg") == 2
    assert "batch 8: 8.00 (7.20 – 9.60)" in page
    assert "batch 32:" not in page
    assert '<tr class="own"><td class="n">8</td>' in page


def test_no_batch_fits() -> None:
    page = batches_section(tiny_report(batches=(tiny_row("32", 32),)))
    assert "It does not fit at any batch size." in page
    assert "<svg" not in page


def test_devices_are_ranked_and_those_with_too_little_memory_are_listed() -> None:
    report = tiny_report()
    page = devices_section(replace(report, devices=(tiny_row("Small", 32, "t4"), *report.devices)))
    assert page.index("Device 200") < page.index("Slow") < page.index("Small")
    assert "does not fit: needs 31.2 GiB, has 15.6 GiB" in page
    assert 'style="width:25.0%"' in page  # Slow takes four times as long
    assert page.count(">extrapolated<") == 1
    nowhere = devices_section(replace(report, devices=(tiny_row("Small", 32, "t4"),)))
    assert "It fits on none of these devices." in nowhere


def test_a_device_without_a_prediction_has_its_reason() -> None:
    assert "Device 9: why no Device 9" in devices_section(bare_report())


def test_advice_marks_the_best_and_says_what_is_unknown() -> None:
    page = advice_section(tiny_report())
    assert "<strong>0.250</strong>" in page
    assert "<strong>0.125</strong>" in page
    assert '<td class="n" data-head="kg CO₂e">–</td>' in page
    assert "may miss the limit" in page
    assert "1 places refused" not in page
    assert "1 place refused" in page


def test_without_choices_the_reasons_are_listed() -> None:
    advice = AdviceTable("a million inferences", (), (("t4", "memory: too little"),))
    page = advice_section(tiny_report(advice=advice))
    assert "No place meets the requirements" in page
    assert "memory: too little" in page
    assert "<details" not in page
    assert "why no advice" in advice_section(bare_report())


def test_trainings_have_hours_and_fleets_instances() -> None:
    report = tiny_report()
    assert report.advice is not None
    rows = tuple(replace(row, hours=spread(12.5), instances=spread(3.0)) for row in report.advice.rows)
    page = advice_section(replace(report, advice=replace(report.advice, rows=rows)))
    assert 'data-head="hours">12.5<' in page
    assert 'data-head="instances">3<' in page
