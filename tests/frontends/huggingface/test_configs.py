import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from foretell.errors import ModelError
from foretell.frontends.huggingface.configs import MAX_CONFIG_BYTES, HfConfig, load_config, quiet, transformers_config


def test_the_type_of_a_config_without_one_is_the_longest_fitting_architecture():
    values = {"architectures": ["RobertaPreLayerNormForMaskedLM"], "hidden_size": 48}
    config = transformers_config(HfConfig("mine", values, "mine"), trust=False)
    assert (config.model_type, config.hidden_size) == ("roberta-prelayernorm", 48)


def test_sizes_inside_a_part_of_a_config_and_huge_files_are_refused(tmp_path):
    path = tmp_path / "small.json"
    path.write_text('{"model_type": "clip", "text_config": {"num_hidden_layers": 4096}}')
    with pytest.raises(ModelError, match="num_hidden_layers = 4096; it must be from 1 to 256"):
        load_config(str(path))
    with path.open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(ModelError, match="larger than 8 MiB"):
        load_config(str(path))


def test_quiet_gives_the_levels_of_the_loggers_back_after_an_error():
    logger = logging.getLogger("transformers")
    before = logger.level
    inside = []

    def fail():
        inside.append(logger.level)
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), quiet():
        fail()
    assert inside == [logging.CRITICAL]
    assert logger.level == before != logging.CRITICAL


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 2048},
        {"encoder_layers": 200, "decoder_layers": 200, "text_config": {"num_hidden_layers": 200}},
        {"depths": [100, 100, 100, 100, 100, 100]},
        {"num_local_experts": 5000},
        {"num_labels": 2**31},
        {"num_conv_layers": 4096},
    ],
)
def test_lists_that_would_take_minutes_to_build(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **values}))
    with pytest.raises(ModelError, match=r"it must be from|layers in all"):
        load_config(str(tmp_path))


def test_an_infinite_limit_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}')
    assert load_config(str(tmp_path)).values["time_step_limit"][1] == float("inf")
