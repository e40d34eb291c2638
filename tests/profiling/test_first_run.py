import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.first_run import Cost, is_finite, run_first, spread
from foretell.profiling.workload import Workload


def test_the_first_run_counts_its_leaves_and_pauses_before_every_module():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(256, 10))
    pauses = []
    result, cost = run_first(lambda: model(torch.zeros(2, 3, 8, 8)), lambda: pauses.append(1))
    assert result.shape == (2, 10)
    assert len(pauses) == 4  # the whole and its three parts
    assert cost.outputs == 512 + 512 + 20
    assert cost.macs == 512 * 27 + 20 * 256


def test_no_hook_outlives_a_first_run_that_fails():
    model, pauses = torch.nn.Linear(4, 2), []
    with pytest.raises(RuntimeError):
        run_first(lambda: model(torch.zeros(1, 5)), lambda: pauses.append(1))
    pauses.clear()
    model(torch.zeros(1, 4))
    assert not pauses


def test_a_cost_grows_with_the_input_and_shrinks_with_the_precision():
    cost = Cost(macs=1e12, outputs=1e9, peak_bytes=2**30, elements=10)
    single = Workload("timm:resnet50", 1, (3, 8, 8), "fp32")
    half = Workload("timm:resnet50", 1, (3, 8, 8), "fp16")
    assert cost.latency_ms(single, 10) == pytest.approx(50 + 6)
    assert cost.latency_ms(single, 30) == pytest.approx(3 * 56)
    assert cost.latency_ms(half, 10) == pytest.approx(10 + 3)
    assert cost.memory_gib(40) == pytest.approx(4)


def test_finite_outputs_and_spread():
    assert is_finite({"ids": torch.tensor([1]), "scores": (torch.tensor([1.0, float("nan")]),)}) is False
    assert is_finite([torch.tensor([1.0])]) is True
    assert is_finite(torch.tensor([1])) is None
    assert spread([1.0, 3.0]) == pytest.approx((2.0, 2**0.5 / 2))
    assert spread([5.0]) == (5.0, 0.0)
