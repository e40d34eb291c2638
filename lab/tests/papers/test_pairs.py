import gzip
import json

import pytest

from lab.papers.pairs import CLAIMS, CLAIMS_4_BITS, encoder_rows, ratios


def row(**others):
    plain = {
        "spec": "timm:a", "mode": "inference", "optimizer": "", "dtype": "fp32", "batch_size": 1,
        "input_shape": "3x8x8", "latency_ms": 1.0, "memory_mib": 10.0, "energy_j": None, "power_w": None,
    }  # fmt: skip
    return plain | others


def claim(text):
    return next(claim for claim in CLAIMS if claim.text == text)


def test_only_neighbours_that_differ_in_the_batch_alone_are_pairs():
    rows = [
        row(batch_size=8, latency_ms=2.0), row(), row(batch_size=2, latency_ms=1.0), row(spec="timm:b", batch_size=4)
    ]  # fmt: skip
    assert ratios(rows, claim("a larger batch has a higher throughput")) == pytest.approx([2, 2])


def test_precision_is_compared_with_single():
    rows = [row(), row(dtype="fp16", memory_mib=5.0), row(dtype="bf16", memory_mib=4.0)]
    assert ratios(rows, claim("fp16 needs less memory than fp32")) == [0.5]


def test_what_was_not_measured_is_no_pair():
    rows = [row(energy_j=1.0), row(batch_size=2)]
    assert ratios(rows, claim("a larger batch needs less energy a sample")) == []


def test_steps_and_forward_passes_are_apart():
    rows = [row(mode="training", power_w=200.0), row(mode="training", dtype="bf16", power_w=100.0), row(power_w=1.0)]
    assert ratios(rows, claim("mixed precision trains with less power")) == [0.5]


def test_four_bits_are_compared_with_sixteen():
    rows = [row(), row(dtype="fp16", memory_mib=5.0), row(dtype="nf4", memory_mib=3.0)]
    memory, *_ = CLAIMS_4_BITS
    assert ratios(rows, memory) == [0.6]


def test_the_grid_of_encoders_is_read_as_rows(tmp_path):
    line = {"spec": "hf:bert?x=1", "batch_size": 4, "tokens": 16, "dtype": "nf4", "memory_mib": 1.0, "latency_ms": 2.0}
    file = tmp_path / "h200" / "1" / "encoders.jsonl.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(json.dumps(line).encode()))
    (read,) = encoder_rows(tmp_path)
    assert (read["input_shape"], read["mode"], read["energy_j"]) == ("16", "inference", None)
