"""Kernels of plain torch: lines become rows, a fifth of the shapes judges, and what is regular is found again."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.llm.kernels import parts_from_bytes, parts_to_bytes, shipped_kernels
from foretell.training.llm_parts import fit_parts, part_errors, part_rows, read_lines


def lines() -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for m in (1, 4, 16, 64, 256, 1024):
        for n in (512, 1024, 2048, 4096, 8192):
            for k in (512, 1024, 4096):
                for precision, size in (("bf16", 2), ("fp8", 1)):
                    us = 3 + n * k * size / 4.0e6
                    made.append({"part": "product", "precision": precision, "m": m, "n": n, "k": k, "us": us})
    made += [
        {"part": "norm", "precision": "bf16", "tokens": t, "width": w, "us": 2 + t * w * 8 / 3.8e6}
        for t in (1, 8, 64, 512, 4096)
        for w in (512, 1024, 2048, 4096)
    ]
    return made


def test_a_store_is_read_without_what_failed(tmp_path: Path) -> None:
    folder = tmp_path / "2026-01-01-1-parts"
    folder.mkdir()
    written = [*lines()[:3], {"part": "product", "precision": "int8", "m": 1, "n": 8, "k": 8, "error": "refused"}]
    (folder / "parts2.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, written)).encode()))
    assert read_lines(tmp_path, "parts") == written[:3]
    with pytest.raises(DataError, match=r"There is no steps\.jsonl\.gz"):
        read_lines(tmp_path, "steps")


def test_precisions_are_fitted_apart_and_shapes_are_on_one_side() -> None:
    rows = {part.name: part for part in part_rows(lines())}
    assert set(rows) == {"product/bf16", "product/fp8", "small"}
    half, eighth = rows["product/bf16"], rows["product/fp8"]
    assert (half.held_out == eighth.held_out).all()
    assert 0.08 < half.held_out.mean() < 0.35


def test_regular_times_are_found_again_at_shapes_that_did_not_teach() -> None:
    rows, kernels = part_rows(lines()), shipped_kernels()
    own = fit_parts(rows, kernels)
    fitted = replace(kernels, own=parts_from_bytes(parts_to_bytes(own)))
    for part in rows:
        errors = part_errors(part, fitted)
        assert np.median(np.abs(errors[part.held_out])) < 0.1
