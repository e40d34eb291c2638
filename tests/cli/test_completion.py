"""What a shell suggests."""

import pytest
from click.shell_completion import ShellComplete

from foretell.cli.completion import registered
from foretell.cli.main import COMMANDS, app


@pytest.fixture
def suggested(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("_FORETELL_COMPLETE", "zsh_complete")
    shell = ShellComplete(app, {}, "foretell", "_FORETELL_COMPLETE")
    return lambda *words: [(item.value, item.type) for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_devices_of_the_catalogue_are_suggested(suggested) -> None:
    assert ("h200", "plain") in suggested("predict", "net.onnx", "--device", "h2")
    assert ("l40s", "plain") in suggested("share", "a.onnx", "b.onnx", "-d", "l4")
    assert suggested("predict", "net.onnx", "--device", "my-gpu.toml") == [("my-gpu.toml", "file")]
    assert ("h200,l4", "plain") in suggested("sweep", "net.onnx", "--devices", "h200,l")


def test_devices_of_this_machine_are_suggested_where_something_is_measured(suggested) -> None:
    assert suggested("profile", "net.onnx", "--device", "c") == [("cuda", "plain"), ("cpu", "plain")]


def test_models_are_suggested_by_their_prefix(suggested) -> None:
    assert ("timm:", "plain") in suggested("predict", "t")
    assert ("net", "file") in suggested("predict", "net")
    assert ("hf:gpt2", "plain") in suggested("inspect", "hf:gp")
    assert ("hf:gpt2", "plain") in suggested("compare", "net.onnx", "hf:gp")


def test_names_of_a_library_are_found_without_importing_it(suggested) -> None:
    assert ("timm:resnet18", "plain") in suggested("predict", "timm:resnet18")
    assert {"resnet50", "vit_base_patch16_224"} <= set(registered("timm"))
    assert "resnet18" in registered("torchvision")
    assert registered("no_such_library") == []


def test_outside_a_shell_that_completes_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_FORETELL_COMPLETE", raising=False)
    command = app.get_command(None, "predict")  # type: ignore[arg-type]
    assert command is COMMANDS.load("predict")
