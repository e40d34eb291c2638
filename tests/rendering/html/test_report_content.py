"""Rows know what they need and what there is."""

from small.tiny_report import tiny_prediction, tiny_row


def test_a_row_needs_what_the_device_shows_or_what_the_allocator_takes() -> None:
    row = tiny_row("x", 2)
    assert row.need_mib == row.prediction.device_memory_mib
    assert row.capacity_mib == 16000.0
    cpu = tiny_row("cpu", 2)
    bare = tiny_prediction(device_memory_mib=None, facts={})
    assert type(cpu)(bare, "cpu", None).need_mib == bare.memory_mib
    assert type(cpu)(bare, "cpu", None).capacity_mib is None
