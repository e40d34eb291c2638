import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from foretell.errors import InputError
from foretell.frontends import ModelRequest, parse_inputs
from foretell.frontends.huggingface import building
from foretell.frontends.huggingface import frontend as under_test
from foretell.frontends.huggingface.configs import load_config
from foretell.frontends.huggingface.frontend import HuggingFaceFrontend, read_sizes, read_values
from foretell.frontends.torch import export
from foretell.frontends.torch.tracing.stacks import UnequalError

TRACED = "facebook/bart-base"  # a family whose graphs are not written


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
    monkeypatch.setattr(building, "build_program", lambda _, **options: call_options.update(options))
    monkeypatch.setattr(export, "graph_from_program", lambda *_, **__: None)
    HuggingFaceFrontend().load(ModelRequest(f"hf:{TRACED}", parse_inputs(["9"]), mode=mode, context=context))
    assert (call_options["sequence"], call_options["context"]) == expected


def test_the_fingerprint_follows_the_values_of_the_config(tmp_path):
    path = tmp_path / "config.json"
    prints = []
    for width in (32, 64, 32):
        path.write_text(json.dumps({"model_type": "electra", "hidden_size": width}))
        prints.append(HuggingFaceFrontend().fingerprint(ModelRequest(str(path))))
    assert prints[0] == prints[2] != prints[1]
    assert "transformers " in prints[0]


ELECTRA = {
    "model_type": "electra", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 64, "vocab_size": 99,
}  # fmt: skip


def test_a_config_of_somebody_is_built_in_a_cage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ELECTRA))
    request = ModelRequest(str(path), parse_inputs(["8"]))
    caged = HuggingFaceFrontend().load(request)
    config = load_config(str(path))
    assert caged.hash == read_values(request.with_source(asdict(config))).hash
    assert caged.name == tmp_path.name


def test_the_limits_of_a_request_are_those_of_its_cage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(under_test, "read_caged", lambda _, request, name: asked.append((name, request.limits)))
    (tmp_path / "config.json").write_text(json.dumps(ELECTRA))
    request = ModelRequest(str(tmp_path), memory_limit_gib=0.01, timeout_s=60)
    HuggingFaceFrontend().load(request)
    assert asked == [(tmp_path.name, request.limits)]
    assert request.limits != ModelRequest(str(tmp_path)).limits


def test_only_what_we_ship_or_the_user_trusts_is_built_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = []
    monkeypatch.setattr(under_test, "read_caged", lambda *_: where.append("cage"))
    monkeypatch.setattr(under_test, "_build", lambda *_: where.append("here"))
    (tmp_path / "config.json").write_text(json.dumps(ELECTRA))
    for request in (
        ModelRequest(f"hf:{TRACED}"),
        ModelRequest(str(tmp_path), trust=True),
        ModelRequest(str(tmp_path)),
        ModelRequest(f"hf:{TRACED}", timeout_s=60),
    ):
        HuggingFaceFrontend().load(request)
    assert where == ["here", "here", "cage", "cage"]


def test_a_model_whose_layers_prove_too_little_is_traced_whole(monkeypatch, tmp_path):
    values = {"model_type": "gptj", "n_embd": 16, "n_layer": 1, "n_head": 2, "rotary_dim": 4, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(values))
    request = ModelRequest(str(tmp_path), parse_inputs(["4"]), mode="training", trust=True)
    whole = HuggingFaceFrontend().load(request)
    asked = []

    def shorten(model):
        asked.append(model)
        model.transformer.h[0].mlp = model.transformer.h[0].ln_1  # a graph that would be wrong

        def refuse(_):
            raise UnequalError("layers of a kind")

        return refuse

    monkeypatch.setattr(building, "shorten", shorten)
    assert HuggingFaceFrontend().load(request) == whole
    assert len(asked) == 1
