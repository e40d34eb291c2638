from dataclasses import fields
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.profiling.campaign.plan import _SECTIONS, Part, read_plan

PART = '[[part]]\nname = "a"\nshare = 1\nzoos = ["synthetic"]\n'


def _read(tmp_path: Path, text: str):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return read_plan(path)


def test_defaults_are_the_protocol(tmp_path):
    plan = _read(tmp_path, PART)
    assert (plan.measuring.warmups, plan.measuring.replays, plan.measuring.tries) == (5, 20, 3)
    assert plan.measuring.max_cv == 0.05
    assert plan.measuring.energy_s >= 1.0


def test_the_shipped_plan_spends_its_time_as_intended():
    plan = read_plan(Path(__file__).parents[3] / "plans" / "h200-1.toml")
    assert sum(part.share for part in plan.parts) == pytest.approx(1.0)
    assert {part.name: part.share for part in plan.parts}["vision"] == 0.6
    assert {mode for part in plan.parts for mode in part.modes} == {"inference", "training", "prefill", "decode"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing would be measured"),
        ("seed = [", "not TOML"),
        (PART + "batch = [1]\n", "Did you mean"),
        (PART + 'dtypes = ["fp8"]\n', "Unknown dtypes 'fp8'"),
        (PART + 'modes = ["training"]\n', "name its optimizers"),
        (PART + "per_model = 0\n", "positive"),
        (PART + PART, "same name"),
        ('[[part]]\nname = "a"\n', "lacks share, zoos"),
        (PART + "[limits]\nmax_latency = 3\n", "max_latency_ms"),
        (PART.replace("zoos", "zoo"), "Did you mean 'zoos'"),
        (PART.replace("[[part]]", "[part]"), r"write \[\[part\]\]"),
        (PART.replace("share = 1", 'share = "all"'), "share in .* is 'all': it must be a number"),
        (PART + "batch_sizes = 4\n", "batch_sizes in .* is 4: it must be a list of whole numbers"),
        (PART + "batch_sizes = []\n", "batch_sizes in .* is empty"),
        (PART + "batch_sizes = [1.5]\n", "batch_sizes in .* must be a list of whole numbers"),
        (PART + 'families = "resnet"\n', "families in .* must be a list of texts"),
        (PART + '[measuring]\nreplays = "3"\n', "replays in .* must be a whole number"),
        (PART + "[workers]\nmeasure = 0\n", "1 worker or more"),
        (PART + '[measuring]\nruntime = "onnx"\n', "Unknown runtime 'onnx' .* Choose from: eager, onnxruntime"),
        (PART + "[measuring]\nthreads = 0\n", "1 thread or more"),
        (PART + "[compiled]\nmeasure_share = 1\n", "measure_share .* is 1: it must be between 0 and 1"),
        (PART + "[compiled]\nprocesses = 0\n", "0 processes of 40 models: both must be 1 or more"),
        ("workers = 3\n" + PART, r"'workers' is 3: write a section, \[workers\]"),
        ('seed = "a"\n' + PART, "seed of the plan .* is 'a'"),
    ],
)
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        _read(tmp_path, text)


def test_integers_are_accepted_for_floats(tmp_path):
    assert _read(tmp_path, PART + "[measuring]\nenergy_share = 1\n").measuring.energy_share == 1


def test_a_file_that_is_no_text_is_no_plan(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xeb\xff\x00")
    with pytest.raises(InputError, match="is not TOML"):
        read_plan(path)


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml"):
        read_plan(tmp_path / "absent.toml")


def test_every_section_and_key_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "measuring.md").read_text(encoding="utf-8")
    for name, section in {"[part]": Part, **_SECTIONS}.items():
        rows = [line for line in text.splitlines() if line.startswith(f"| `[{name}]`")]
        assert rows, name
        assert [field.name for field in fields(section) if not any(f"`{field.name}`" in row for row in rows)] == [], (
            name
        )
