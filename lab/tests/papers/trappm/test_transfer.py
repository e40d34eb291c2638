import pytest

pytest.importorskip("torch")

from lab.papers.dippm import fits
from lab.papers.dippm.sets import Labelled
from lab.papers.trappm import encoders
from lab.papers.trappm.encoders import EncoderArm
from lab.papers.trappm.transfer import ARMS, judge
from small.tiny_workloads import tiny_recipe, tiny_samples


def test_every_arm_is_judged_on_the_second_device(tmp_path, monkeypatch):
    samples = tiny_samples(8)
    rows = [Labelled(f"w{i}", f"timm:net{i % 20}", "f", "inference", *samples[i % 8]) for i in range(40)]
    monkeypatch.setattr(fits, "_rows", rows)
    monkeypatch.setattr(encoders, "find_recipe", lambda _name: tiny_recipe("trappm"))
    monkeypatch.setattr(encoders, "HELD_ASIDE", 4)
    arm = EncoderArm(0, last_relu=False, dropout=0.0)
    encoders.pretrain_arm(arm, tmp_path, float("inf"), 4, 20)
    recipe = tiny_recipe("trappm", epochs=2, targets=("latency_ms",))
    errors = judge(rows, rows, recipe, tmp_path, arm.key, 0)
    assert set(errors) == set(ARMS)
    assert all(error > 0 and root > 0 for error, root in errors.values())
