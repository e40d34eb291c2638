"""Arguments of the tools: what is allowed, and which files can be named."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from foretell.errors import ForetellError, InputError, ModelError
from foretell.web.mcp.tools import TOOLS, Share, find_model, read_arguments


def test_every_tool_says_what_it_does_and_takes_named_arguments() -> None:
    assert set(TOOLS) == {"predict", "fit", "advise", "improve", "share", "llm", "inspect", "devices"}
    for arguments in TOOLS.values():
        assert arguments.__doc__
        assert arguments.model_json_schema()["additionalProperties"] is False


@pytest.mark.parametrize(
    ("tool", "values", "message"),
    [
        ("predict", {}, "model: Field required"),
        ("predict", {"model": "timm:resnet18", "batch_size": 0}, "batch_size: Input should be greater than"),
        ("predict", {"model": "timm:resnet18", "trust": True}, "trust: Extra inputs are not permitted"),
        ("predict", {"model": "timm:resnet18", "device": "../my.toml"}, "device: String should match pattern"),
        ("advise", {"model": "timm:resnet18", "prices": "/etc/passwd"}, "prices: Extra inputs"),
        ("share", {"of": ["timm:resnet18"]}, "of: List should have at least 2 items"),
        ("predct", {"model": "timm:resnet18"}, "Unknown tool 'predct'. Did you mean 'predict'?"),
    ],
)
def test_wrong_arguments_are_one_line(tool: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        read_arguments(tool, values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_models_of_a_call_are_known() -> None:
    share = read_arguments("share", {"of": ["timm:resnet18", "net.onnx"]})
    assert isinstance(share, Share)
    assert share.models() == ["timm:resnet18", "net.onnx"]
    assert read_arguments("devices", {}).models() == []


def test_only_files_of_the_folder_are_found(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    for folder in (inside, inside / "deep", outside):
        (folder / "net.onnx").write_bytes(b"")
    (inside / "link.onnx").symlink_to(outside / "net.onnx")
    (inside / "config.json").write_text("{}")
    assert find_model("deep/net.onnx", inside) == str(inside.resolve() / "deep" / "net.onnx")
    assert find_model(str(inside / "net.onnx"), inside) == str((inside / "net.onnx").resolve())
    assert find_model("config.json", inside, language=True) == str((inside / "config.json").resolve())
    for escape in ("../out/net.onnx", str(outside / "net.onnx"), "link.onnx", "deep/../../out/net.onnx"):
        with pytest.raises(ModelError, match="not inside the allowed folder"):
            find_model(escape, inside)
    for refused in ("config.json", "absent.onnx", "net.py:build", "/etc/passwd", "timm:../x", "hf:../../etc"):
        with pytest.raises(ForetellError):
            find_model(refused, inside)
    with pytest.raises(ModelError, match="No folder of model files is allowed"):
        find_model("net.onnx", None)
    with pytest.raises(ModelError):
        find_model("net.onnx", inside, language=True)
