import pytest
import torch

from foretell.errors import MeasurementError
from foretell.profiling.replays.green_contexts import GreenStreams


class Timed(GreenStreams):
    """Streams that are numbers, and a product whose time follows from them."""

    def _create(self, sm_count):
        self.created = [*getattr(self, "created", []), sm_count]
        return sm_count

    def _product_ms(self, matrix, stream):
        return 132.0 / stream


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch):
    real = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: real(2, 2))


def test_a_limit_that_slows_a_product_down_is_believed():
    assert Timed(132, 132).check(33) == pytest.approx(4.0)


def test_a_limit_that_changes_nothing_is_refused():
    with pytest.raises(MeasurementError, match=r"96 of 132 multiprocessors are only 1\.38 times slower"):
        Timed(132, 132).check(96)


def test_each_number_of_multiprocessors_has_one_stream_and_the_whole_device_needs_none():
    streams = Timed(132, 132)
    assert [streams.stream(count) for count in (16, 132, 16, 32)] == [16, 132, 16, 32]
    assert streams.created == [16, 32]
