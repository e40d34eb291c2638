"""Dollars, energy and carbon against examples worked by hand, and where something is unknown, zero or absurd."""

import math

import pytest

from foretell.advisors.costs import InferenceCost, TrainingCost, fleet_for_rate, inference_cost, training_cost
from foretell.errors import InputError
from foretell.records import Estimate

# K. Panner Selvam's thesis, Table 3.4: ten trainings of 70 epochs; seconds an epoch and hours in all are from 3.4.5
V100, V100_X4, A100, A100_X4 = (32.8, 6.38), (22.3, 4.34), (22.88, 4.45), (18.94, 3.69)
TABLE_3_4 = {
    "aws p4d.24xlarge": (A100_X4, 32.77, 120.92),
    "aws p3.2xlarge": (V100, 3.06, 19.52),
    "aws p3.8xlarge": (V100_X4, 12.24, 53.12),
    "gcp a100": (A100, 2.93, 13.03),
    "gcp a100 x4": (A100_X4, 11.74, 43.32),
    "gcp v100": (V100, 2.48, 15.82),
    "gcp v100 x4": (V100_X4, 9.92, 43.05),
    "azure nc6s v3": (V100, 3.06, 19.52),
    "azure nc24rs v3": (V100_X4, 13.46, 58.41),
    "azure nc24ads v4": (A100, 3.67, 16.33),
    "azure nc96ads v4": (A100_X4, 14.69, 54.20),
}


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def test_efficientnet_b6_of_the_thesis():
    cost = training_cost(350, 200_000, usd_per_h=2.934)
    assert round(cost.hours.value, 2) == 19.44
    # the thesis multiplies the rounded hours: 19.44 h × 2.934 $/h = 57.04 $
    assert round(round(cost.hours.value, 2) * 2.934, 2) == 57.04
    assert value(cost.usd) == pytest.approx(70_000 / 3600 * 2.934)
    assert value(cost.usd) == pytest.approx(57.04, abs=0.02)


@pytest.mark.parametrize("row", TABLE_3_4)
def test_table_3_4_of_the_thesis(row):
    (epoch_s, hours), usd_per_h, usd = TABLE_3_4[row]
    from_hours = training_cost(hours * 3_600_000, 1, usd_per_h=usd_per_h)
    assert value(from_hours.usd) == pytest.approx(usd, abs=0.01)
    from_epochs = training_cost(epoch_s * 1000, 10 * 70, usd_per_h=usd_per_h)
    assert from_epochs.hours.value == pytest.approx(hours, abs=0.01)
    assert value(from_epochs.usd) == pytest.approx(usd, rel=0.003)


def test_inference_of_the_thesis():
    """3.4.5: 10⁴ inferences of 37 ms at 2.93 $/h cost 0.301 $, of 5.15 s (about) at 0.68 $/h 9.724 $."""
    gpu, cpu = inference_cost(37, 1, usd_per_h=2.93), inference_cost(5150, 1, usd_per_h=0.68)
    assert value(gpu.usd_per_million) / 100 == pytest.approx(0.301, abs=0.0005)
    assert value(cpu.usd_per_million) / 100 == pytest.approx(9.724, rel=0.001)


def test_a_million_inferences_by_hand():
    """36 ms for 10 items: 3600 s a million; 2 $/h on 4 copies: 0.5 $; 250 W × PUE 1.2: 0.3 kWh; at 400 g 0.12 kg."""
    cost = inference_cost(36, 10, usd_per_h=2, replicas=4, power_w=250, pue=1.2, g_co2e_per_kwh=400)
    assert cost.seconds_per_million.value == pytest.approx(3600)
    assert value(cost.usd_per_million) == pytest.approx(0.5)
    assert value(cost.device_kwh_per_million) == pytest.approx(0.25)
    assert value(cost.kwh_per_million) == pytest.approx(0.3)
    assert value(cost.kg_co2e_per_million) == pytest.approx(0.12)
    assert cost.unknown == {}


def test_energy_of_a_batch_is_taken_before_power():
    """9 J for 10 items are 0.9 MJ a million: 0.25 kWh."""
    cost = inference_cost(36, 10, energy_j=9, power_w=1e5)
    assert value(cost.device_kwh_per_million) == pytest.approx(0.25)


def test_training_by_hand():
    """7200 steps of 500 ms are an hour; 8 devices of 300 W take 2.4 kWh, 3 with PUE 1.25, 1.5 kg at 500 g."""
    cost = training_cost(500, 7200, usd_per_h=20, power_w=300, devices=8, pue=1.25, g_co2e_per_kwh=500)
    quantities = (cost.hours, cost.usd, cost.device_kwh, cost.kwh, cost.kg_co2e)
    assert [value(estimate) for estimate in quantities] == pytest.approx([1, 20, 2.4, 3, 1.5])


def test_intervals_go_through_and_multiply_on_the_wide_side():
    latency, power = Estimate(36, 18, 72), Estimate(250, 200, 300)
    cost = inference_cost(latency, 10, usd_per_h=2, power_w=power, pue=1, g_co2e_per_kwh=1000)
    assert cost.seconds_per_million == Estimate(*(pytest.approx(end) for end in (3600, 1800, 7200)))
    assert cost.usd_per_million == Estimate(*(pytest.approx(end) for end in (2, 1, 4)))
    assert cost.kg_co2e_per_million == Estimate(*(pytest.approx(end) for end in (0.25, 0.1, 0.6)))
    training = training_cost(Estimate(1000, 900, 1200), 3600, usd_per_h=3)
    assert training.usd == Estimate(*(pytest.approx(end) for end in (3, 2.7, 3.6)))


def test_an_unknown_input_makes_the_result_unknown_with_a_reason():
    cost = inference_cost(1, 1)
    assert (cost.usd_per_million, cost.device_kwh_per_million, cost.kwh_per_million) == (None, None, None)
    assert cost.unknown == {
        "usd_per_million": "the price is unknown",
        "device_kwh_per_million": "the energy and the power are unknown",
        "kwh_per_million": "the energy and the power are unknown, the PUE is unknown",
        "kg_co2e_per_million": "the energy and the power are unknown, the PUE is unknown, "
        "the carbon intensity of the grid is unknown",
    }
    no_pue = training_cost(1000, 3600, usd_per_h=1, power_w=100, g_co2e_per_kwh=100)
    assert value(no_pue.device_kwh) == pytest.approx(0.1)
    assert (no_pue.kwh, no_pue.kg_co2e) == (None, None)
    assert no_pue.unknown == dict.fromkeys(("kwh", "kg_co2e"), "the PUE is unknown")


@pytest.mark.parametrize("known", range(16))
def test_a_reason_stands_for_every_unknown_and_for_no_other(known):
    have = [bool(known >> bit & 1) for bit in range(4)]
    facts = {
        "usd_per_h": 1.0 if have[0] else None,
        "power_w": 1.0 if have[1] else None,
        "pue": 1.0 if have[2] else None,
        "g_co2e_per_kwh": 1.0 if have[3] else None,
    }
    results: list[InferenceCost | TrainingCost] = [inference_cost(1, 1, **facts), training_cost(1, 1, **facts)]
    for cost in results:
        absent = {name for name in type(cost).__dataclass_fields__ if getattr(cost, name) is None}
        assert set(cost.unknown) == absent


def test_a_free_machine_and_a_carbon_free_grid_are_zero_and_not_unknown():
    cost = training_cost(1000, 3600, usd_per_h=0, power_w=100, pue=1, g_co2e_per_kwh=0)
    assert (value(cost.usd), value(cost.kg_co2e)) == (0, 0)
    assert cost.unknown == {}


def test_no_steps_cost_nothing():
    cost = training_cost(1000, 0, usd_per_h=3, power_w=100, pue=1.1, g_co2e_per_kwh=10)
    assert [value(e) for e in (cost.hours, cost.usd, cost.kwh, cost.kg_co2e)] == [0, 0, 0, 0]


def test_a_fleet_by_hand():
    """8 items in 20 ms are 400 a second, 200 at half use: 1001 a second need 6 instances of one copy, 3 of two."""
    assert fleet_for_rate(1001, 20, 8, utilisation=0.5).instances.value == 6
    two = fleet_for_rate(1001, 20, 8, utilisation=0.5, replicas=2, usd_per_h=2)
    assert two.instances.value == 3
    assert value(two.usd_per_h) == 6
    assert value(two.usd_per_million) == pytest.approx(6 / (1001 * 3600) * 1e6)


@pytest.mark.parametrize("instances", [1, 2, 3, 7, 10, 49, 1000])
@pytest.mark.parametrize("utilisation", [0.1, 0.3, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("latency_ms", [0.1, 3.0, 7.0, 10.0])
def test_a_rate_that_fits_exactly_needs_no_instance_more(instances, utilisation, latency_ms):
    rate_per_s = instances * utilisation * 4 * 1000 / latency_ms
    assert fleet_for_rate(rate_per_s, latency_ms, 4, utilisation=utilisation).instances.value == instances
    assert fleet_for_rate(rate_per_s * 1.001, latency_ms, 4, utilisation=utilisation).instances.value > instances


def test_a_small_rate_needs_one_instance_and_no_rate_none():
    small = fleet_for_rate(1e-6, Estimate(1, 0.5, 2), 1, utilisation=0.7)
    assert small.instances == Estimate(1, 1, 1)
    none = fleet_for_rate(0, 1, 1, utilisation=0.7, usd_per_h=5)
    assert (none.instances.value, value(none.usd_per_h), none.usd_per_million) == (0, 0, None)
    assert none.unknown == {"usd_per_million": "there are no requests"}


def test_a_fleet_has_an_interval_of_whole_instances_and_no_price_where_there_is_none():
    fleet = fleet_for_rate(100, Estimate(15, 11, 31), 1, utilisation=1)
    assert fleet.instances == Estimate(2, 2, 4)
    assert (fleet.usd_per_h, fleet.usd_per_million) == (None, None)
    assert fleet.unknown == dict.fromkeys(("usd_per_h", "usd_per_million"), "the price is unknown")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inference_cost(0, 1), "The latency is 0 ms"),
        (lambda: inference_cost(math.nan, 1), "The latency is nan ms"),
        (lambda: inference_cost(Estimate(1, -1, 2), 1), "(-1 to 2); it must be a number above 0"),
        (lambda: inference_cost(1, 0), "The batch size is 0; it must be an integer of at least 1"),
        (lambda: inference_cost(1, 1, replicas=0), "The number of replicas is 0"),
        (lambda: inference_cost(1, 1, usd_per_h=-1), "The price is -1 $/h"),
        (lambda: inference_cost(1, 1, energy_j=0), "The energy is 0 J"),
        (lambda: inference_cost(1, 1, pue=0.9), "The PUE is 0.9; it must be a number of at least 1"),
        (lambda: training_cost(1, -1), "The number of steps is -1; it must be an integer of at least 0"),
        (lambda: training_cost(1, 1, devices=0), "The number of devices is 0"),
        (lambda: training_cost(1, 1, power_w=math.inf), "The power is inf W"),
        (lambda: training_cost(1, 1, g_co2e_per_kwh=-1), "The carbon intensity is -1 g/kWh"),
        (lambda: fleet_for_rate(-1, 1, 1, utilisation=1), "The rate is -1 requests a second"),
        (lambda: fleet_for_rate(1, 1, 1, utilisation=0), "The utilisation is 0; it must be above 0 and at most 1"),
        (lambda: fleet_for_rate(1, 1, 1, utilisation=70), "The utilisation is 70"),
    ],
)
def test_impossible_costs_are_refused_in_one_line(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: inference_cost(1, 1.5),
        lambda: inference_cost(1, 1, replicas=2.5),
        lambda: training_cost(1, 1.5),
        lambda: training_cost(1, 1, devices=1.5),
        lambda: fleet_for_rate(1, 1, 0, utilisation=1),
        lambda: fleet_for_rate(1, 1, 1, utilisation=1, replicas=0),
        lambda: fleet_for_rate(1, 0, 1, utilisation=1),
        lambda: fleet_for_rate(math.inf, 1, 1, utilisation=1),
        lambda: fleet_for_rate(1, 1, 1, utilisation=1, usd_per_h=math.nan),
        lambda: inference_cost(1, 1, pue=math.inf),
        lambda: inference_cost(1, 1, usd_per_h=math.inf),
        lambda: inference_cost(1, 1, g_co2e_per_kwh=math.inf),
        lambda: inference_cost(Estimate(3, 4, 5), 1),
        lambda: inference_cost(Estimate(6, 4, 5), 1),
        lambda: inference_cost(Estimate(4, 0, 5), 1),
        lambda: inference_cost(Estimate(4, 3, math.inf), 1),
        lambda: inference_cost(1, 1, energy_j=-1),
        lambda: inference_cost(1, 1, power_w=0),
        lambda: training_cost(0, 1),
    ],
)
def test_more_impossible_costs_are_refused(call):
    with pytest.raises(InputError):
        call()


def test_values_at_a_limit_are_allowed():
    assert inference_cost(Estimate(1, 1, 1), 1, pue=1, g_co2e_per_kwh=0, usd_per_h=0, replicas=1).unknown
    assert fleet_for_rate(1, 1, 1, utilisation=1).instances.value == 1
    assert training_cost(1, 1, devices=1).hours.value == pytest.approx(1 / 3.6e6)
    assert training_cost(1, 1.0).hours == training_cost(1, 1).hours


def test_the_interval_of_a_fleet_has_a_price_at_both_ends():
    fleet = fleet_for_rate(100, Estimate(15, 11, 31), 1, utilisation=0.5, usd_per_h=3)
    assert fleet.instances == Estimate(3, 3, 7)
    assert fleet.usd_per_h == Estimate(9, 9, 21)
    assert fleet.usd_per_million == Estimate(*(pytest.approx(usd / (100 * 3600) * 1e6) for usd in (9, 9, 21)))
    assert fleet.unknown == {}


def test_energy_has_an_interval_of_its_own():
    cost = inference_cost(36, 10, energy_j=Estimate(9, 4.5, 18), pue=2, g_co2e_per_kwh=500)
    assert cost.device_kwh_per_million == Estimate(*(pytest.approx(end) for end in (0.25, 0.125, 0.5)))
    assert cost.kwh_per_million == Estimate(*(pytest.approx(end) for end in (0.5, 0.25, 1.0)))
    assert cost.kg_co2e_per_million == Estimate(*(pytest.approx(end) for end in (0.25, 0.125, 0.5)))
    training = training_cost(Estimate(1000, 900, 1200), 3600, power_w=Estimate(100, 50, 200), devices=3)
    assert training.device_kwh == Estimate(*(pytest.approx(end) for end in (0.3, 0.135, 0.72)))
    assert training.unknown["kwh"] == "the PUE is unknown"
    assert training_cost(1, 1).unknown["device_kwh"] == "the power is unknown"
