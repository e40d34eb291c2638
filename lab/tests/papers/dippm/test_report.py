from dataclasses import replace

import numpy as np
import pytest

from lab.papers.dippm.report import Fitted, by_family, joint, render


def arm(name, seed, factor, last=0.001, planned=500):
    truth = np.array([1.0, 2.0, np.nan, 4.0])
    memory = np.array([1000.0, 4000.0, 6000.0, 30000.0])
    facts = {
        "arm": name, "subset": "families", "split": "random", "seed": seed, "epochs": 500,
        "planned_epochs": planned, "steps": 5000, "recipe": {"width": 64},
        "improvement_of_last_tenth": last, "curve": [{"epoch": 1, "score": 0.5}, {"epoch": 2, "score": 0.7}],
    }  # fmt: skip
    return Fitted(
        facts,
        {"latency_ms": truth, "device_memory_mib": memory},
        {"latency_ms": truth * factor, "device_memory_mib": memory * [1, 1.5, 0.5, 1]},
        ["vgg", "vgg", "vit", "vit"],
    )


def test_the_best_arm_is_first_with_its_spread_and_whether_it_converged():
    text = render([arm("gcn", 0, 1.5), arm("dippm", 0, 1.1), arm("dippm", 1, 1.3, last=0.05)])
    rows = [line for line in text.splitlines() if line.startswith(("| dippm |", "| gcn |"))]
    assert rows[0] == (
        "| dippm | 2 | 20 ± 14 | – | 25 ± 0 | – | – | 22.9 ± 6.1 | 20 ± 14 | 0.467 ± 0.33 | 0.529 ± 0.37 | 500 | 5,000 "
        "| 2.55 ± 3.5 | 1 of 2 |"
    )
    assert rows[1].startswith("| gcn | 1 | 50 | – | 25 |")


def test_profiles_are_counted_right_too_small_and_too_large():
    text = render([arm("dippm", 0, 1.0)])
    # 4,000 MiB predicted as 6,000 asks for too much, 6,000 predicted as 3,000 for too little
    assert "| dippm, families, random | device memory | 4 | 50.0 | 25.0 | 25.0 | 50.0 |" in text


def test_a_curve_shows_the_best_error_so_far():
    assert "| 50 | 50 | 50 |" in render([arm("dippm", 0, 1.0)])


def test_unmeasured_workloads_are_not_counted():
    assert arm("dippm", 0, 1.2).errors("latency_ms") == pytest.approx([0.2] * 3)
    assert not len(arm("dippm", 0, 1.2).errors("power_w"))


def test_a_fit_that_the_clock_ended_has_not_converged():
    assert "| 1 of 1 |" in render([arm("dippm", 0, 1.0)])
    assert "| 0 of 1 |" in render([arm("dippm", 0, 1.0, planned=501)])


def test_errors_are_shown_by_family_and_the_width_is_said():
    text = render([arm("dippm", 0, 1.2)])
    assert "| vgg | 2 | 20.0 | 25.0 |" in text
    assert "| vit | 2 | 20.0 | 25.0 |" in text
    assert "layers 64 wide" in text
    assert by_family([arm("dippm", 0, 1.2)])["vgg"][0] == 2


def test_peak_memory_stands_for_device_memory_where_that_was_not_measured():
    full = arm("dippm", 0, 1.2)
    peak = replace(
        full,
        truth=full.truth | {"memory_mib": full.truth["device_memory_mib"], "device_memory_mib": np.full(4, np.nan)},
        predicted={"latency_ms": full.predicted["latency_ms"], "memory_mib": full.predicted["device_memory_mib"]},
    )
    assert joint(peak) == pytest.approx(joint(full))
    text = render([peak])
    assert "| family | workloads | latency % | memory % |" in text
    assert "| dippm, families, random | memory | 4 | 50.0 |" in text


def test_on_all_inference_the_ten_families_have_a_table_of_their_own():
    whole = arm("dippm", 0, 1.2)
    whole = replace(whole, facts=whole.facts | {"subset": "inference"}, families=["vgg", "others", "vit", "others"])
    whole.predicted["latency_ms"][1] = 8.0
    text = render([whole])
    first, second = (line for line in text.splitlines() if line.startswith("| dippm | 1 |"))
    assert first.startswith("| dippm | 1 | 113 |"), "20, 300 and 20 %"
    assert second.startswith("| dippm | 1 | 20 |"), "one workload of the two was timed"
    assert "the 10 families alone" in text
    assert "families alone" not in render([arm("dippm", 0, 1.2)])
    assert "95 % interval" not in render([arm("dippm", 0, 1.2)])


def test_training_steps_stand_by_share_of_the_labels_with_the_families_alone():
    steps = arm("none", 0, 1.2)
    facts = steps.facts | {"subset": "training steps, 25 % of the labels"}
    text = render([replace(steps, facts=facts, families=["vgg", "others", "vit", "others"])])
    assert "the 11 families alone" in text
    assert "### Latency % of the families by share of the labels, split by random" in text
    assert "| none | 20.0 (one seed) |" in text
    assert "95 % interval" in text
