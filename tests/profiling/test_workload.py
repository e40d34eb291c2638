import pytest

from foretell.errors import InputError
from foretell.profiling.workload import Spec, Workload, fraction, parse_spec, workload_from_json, workload_from_row


def test_a_spec_survives_its_text():
    spec = Spec("hf", "bert", {"hidden_size": 128, "tied": True, "ratio": 2.5, "kind": "p2c|c2p"})
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize("text", ["resnet50", "timm:", ":x", "timm:a?b"])
def test_a_broken_spec_is_refused(text):
    with pytest.raises(InputError, match="Write"):
        parse_spec(text)


def test_identity_depends_on_all_that_is_computed_and_on_nothing_else():
    base = Workload("timm:resnet50", 8, (3, 224, 224), "fp16")
    others = [
        Workload("timm:resnet18", 8, (3, 224, 224), "fp16"),
        Workload("timm:resnet50", 4, (3, 224, 224), "fp16"),
        Workload("timm:resnet50", 8, (3, 192, 224), "fp16"),
        Workload("timm:resnet50", 8, (3, 224, 224), "bf16"),
        Workload("timm:resnet50", 8, (3, 224, 224), "fp16", "training", "sgd"),
        Workload("timm:resnet50", 8, (3, 224, 224), "fp16", "training", "adamw"),
    ]
    assert len({base.id, *(other.id for other in others)}) == 7
    assert Workload("timm:resnet50", 8, (3, 224, 224), "fp16", family="resnet").id == base.id
    assert base.id == "42853dc8127b9d7f"  # written in data that exists: it never changes


def test_json_round_trip():
    workload = Workload("hf:bert?layers=2", 4, (128,), "bf16", "training", "adamw", "hf-bert")
    assert workload_from_json(workload.to_json()).id == workload.id
    with pytest.raises(InputError):
        workload_from_json({**workload.to_json(), "input_shape": "128"})


def test_a_row_of_a_table_may_have_no_shape():
    row = {"spec": "file:sum.onnx?sha256=0", "batch_size": 1, "dtype": "fp32", "mode": "inference"}
    row |= {"optimizer": None, "family": "onnx"}
    assert workload_from_row({**row, "input_shape": ""}).input_shape == ()
    assert workload_from_row({**row, "input_shape": "3x32"}).input_shape == (3, 32)


def test_fractions_are_spread_evenly():
    values = [fraction("energy", 1, number) for number in range(2000)]
    assert 0.2 < sum(value < 0.25 for value in values) / 2000 < 0.3


def test_a_layout_is_part_of_the_identity_and_older_records_have_none():
    plain = Workload("timm:resnet50", 8, (3, 224, 224), "fp16")
    assert plain.id == "42853dc8127b9d7f"  # as it was before there were layouts
    other = Workload("timm:resnet50", 8, (3, 224, 224), "fp16", channels_last=True)
    assert other.id != plain.id
    assert workload_from_json(other.to_json()) == other
    old = {name: value for name, value in plain.to_json().items() if name != "channels_last"}
    assert workload_from_json(old) == plain
    row = {**old, "input_shape": "3x224x224"}
    assert workload_from_row(row) == plain
    assert workload_from_row({**row, "channels_last": True}) == other
