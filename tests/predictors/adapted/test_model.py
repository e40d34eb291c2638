"""The file: what was written is read back; a damaged or hostile one is refused in one line."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.predictors import find_predictor
from foretell.predictors.adapted.model import AdaptedModel, Card, is_adapted
from foretell.predictors.adapted.regression import LATENCY_PARTS, Factors
from foretell.predictors.adapted.units import CLASSES, WIDTH

CARD = Card(
    "t4", "transfer", 2, 1, "2026-11-16T00:00:00+00:00", ("inference fp32",), (0.5,) * len(CLASSES), (1.0,), 0.1
)
MODEL = AdaptedModel(CARD, {"latency_ms": Factors(np.ones(WIDTH) / 8, LATENCY_PARTS, np.ones((2, WIDTH)) / 8, 1.7)})


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "t4.zip"
    file.write_bytes(MODEL.to_bytes())
    assert is_adapted(file)
    read = AdaptedModel.from_file(file)
    assert read.card == CARD
    assert np.array_equal(read.factors["latency_ms"].weights, MODEL.factors["latency_ms"].weights)
    assert read.factors["latency_ms"].widths == LATENCY_PARTS


def changed(**parts: bytes | None) -> bytes:
    """The file with other parts."""
    with zipfile.ZipFile(io.BytesIO(MODEL.to_bytes())) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()} | parts
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            if data is not None:
                archive.writestr(name, data)
    return file.getvalue()


def array(values: object) -> bytes:
    written = io.BytesIO()
    np.save(written, np.asarray(values), allow_pickle=True)
    return written.getvalue()


def card(**values: object) -> bytes:
    with zipfile.ZipFile(io.BytesIO(MODEL.to_bytes())) as archive:
        return json.dumps(json.loads(archive.read("adapted.json")) | values).encode()


WEIGHTS = "latency_ms.weights.npy"


@pytest.mark.parametrize(
    "data",
    [
        changed(**{"adapted.json": b"{"}),
        changed(**{"adapted.json": b"[]"}),
        changed(**{"adapted.json": card(device=3)}),
        changed(**{"adapted.json": card(device="t4\n")}),
        changed(**{"adapted.json": card(shares=[1.0])}),
        changed(**{"adapted.json": card(samples=-1)}),
        changed(**{"adapted.json": card(factors={})}),
        changed(**{"adapted.json": card(probe=[float("nan")])}),
        changed(**{WEIGHTS: None}),
        changed(**{WEIGHTS: b"no array"}),
        changed(**{WEIGHTS: array([{"a": 1}])}),
        changed(**{WEIGHTS: array(np.ones(3, np.float32))}),
        changed(**{WEIGHTS: array(np.full(WIDTH, np.nan, np.float32))}),
        changed(bomb=bytes(2**27)),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "bad.zip"
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"is not a predictor of foretell adapt") as caught:
        find_predictor(str(file), "t4")
    assert "\n" not in str(caught.value)


def test_another_version_and_an_unknown_base_say_so(tmp_path: Path) -> None:
    file = tmp_path / "old.zip"
    file.write_bytes(changed(**{"adapted.json": card(version=0)}))
    with pytest.raises(ModelError, match=r"another version of foretell; make it again"):
        find_predictor(str(file), "t4")
    file.write_bytes(replace(MODEL, card=replace(CARD, base="os:system")).to_bytes())
    with pytest.raises(ModelError, match=r"starts from the predictor 'os:system', which this foretell does not have"):
        find_predictor(str(file), "t4")
