import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from foretell.errors import InputError
from foretell.frontends import ModelRequest, parse_inputs
from foretell.frontends.huggingface import frontend as under_test
from foretell.frontends.huggingface.frontend import HuggingFaceFrontend, read_sizes


def test_one_number_is_tokens_and_two_or_three_are_an_image():
    assert read_sizes(()) == (None, None)
    assert read_sizes(parse_inputs(["3x32x64", "7"])) == (7, (3, 32, 64))
    assert read_sizes(parse_inputs(["32x64"])) == (None, (32, 64))
    with pytest.raises(InputError, match="got 1x2x3x4"):
        read_sizes(parse_inputs(["1x2x3x4"]))


@pytest.mark.parametrize(
    ("mode", "context", "expected"),
    [("decode", None, (None, 9)), ("decode", 5, (9, 5)), ("prefill", None, (9, None))],
)
def test_tokens_are_the_context_of_a_decode_that_names_none(monkeypatch, mode, context, expected):
    call_options = {}
    monkeypatch.setattr(under_test, "build_program", lambda _, **options: call_options.update(options))
    monkeypatch.setattr(under_test, "graph_from_program", lambda *_, **__: None)
    HuggingFaceFrontend().load(ModelRequest("hf:gpt2", parse_inputs(["9"]), mode=mode, context=context))
    assert (call_options["sequence"], call_options["context"]) == expected


def test_the_fingerprint_follows_the_values_of_the_config(tmp_path):
    path = tmp_path / "config.json"
    prints = []
    for width in (32, 64, 32):
        path.write_text(json.dumps({"model_type": "bert", "hidden_size": width}))
        prints.append(HuggingFaceFrontend().fingerprint(ModelRequest(str(path))))
    assert prints[0] == prints[2] != prints[1]
    assert "transformers " in prints[0]
