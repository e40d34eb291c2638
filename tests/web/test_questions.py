"""What may be asked; above all, no spec names a file of the server."""

import pytest

from foretell.errors import ForetellError, InputError, ModelError, UnknownNameError
from foretell.web.questions import check_spec, read_question


@pytest.mark.parametrize(
    "spec",
    ["/etc/passwd", "../model.onnx", "model.onnx", "./net.py:build", "net.py:build", "hf:../secrets", "hf:/etc",
     "hf:~/x", "hf:config.json", "hf:org/config.json", "timm:../x", "timm:a/b", "timm:", "hf:a/b/c", "file:///etc/passwd",
     "http://example.org/x.onnx", "torchvision:resnet50\n", "timm:hf-hub:org/x", "", " ", "hf:org/.hidden",
     "timm:resnet50\0", "C:\\x.onnx", "hf:a..b"],
)  # fmt: skip
def test_nothing_that_could_be_a_file_or_code(spec: str) -> None:
    with pytest.raises(ModelError, match="No file of the server is opened"):
        check_spec(spec)


@pytest.mark.parametrize(
    "spec", ["timm:resnet50", "timm:vit_base_patch16_224.augreg_in21k", "torchvision:vgg16", "hf:bert-base-uncased",
             "hf:meta-llama/Llama-2-7b-hf"],
)  # fmt: skip
def test_specs_that_need_no_trust(spec: str) -> None:
    check_spec(spec)


def test_a_predictor_is_a_name_and_no_file() -> None:
    with pytest.raises(UnknownNameError, match=r"x\.zip"):
        read_question("predict", {"model": "timm:resnet50", "predictor": "/tmp/x.zip"})
    assert read_question("predict", {"model": "timm:resnet50", "predictor": "roofline"}).model == "timm:resnet50"


@pytest.mark.parametrize("extra", [{"trust": True}, {"store": "/data"}, {"trace": "/tmp/x"}, {"prices": "/etc/passwd"}])
def test_options_that_reach_files_or_code_are_unknown_here(extra: dict[str, object]) -> None:
    for kind in ("predict", "advise", "sweep", "report"):
        with pytest.raises(InputError, match="not permitted"):
            read_question(kind, {"model": "timm:resnet50", **extra})


def test_problems_are_one_line_that_names_the_fields() -> None:
    with pytest.raises(ForetellError) as error:
        read_question("sweep", {"model": "timm:x", "batch_sizes": [0], "devices": [], "dtype": 3, "mode": 1})
    assert "batch_sizes.0: " in str(error.value)
    assert "and 1 more" in str(error.value)


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="slo_ms"):
        read_question("advise", {"model": "timm:x", "slo_ms": float("inf")})


def test_both_models_of_a_comparison_are_checked() -> None:
    with pytest.raises(ModelError):
        read_question("compare", {"model": "timm:x", "other": "/etc/passwd"})


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("predict", {"device": "/etc/gpu.toml"}),
        ("share", {"other": "timm:x", "device": "gpu.toml"}),
        ("sweep", {"devices": ["h200", "./gpu.toml"]}),
        ("advise", {"devices": ["gpu.toml"]}),
    ],
)
def test_a_device_is_a_name_and_no_file(kind: str, extra: dict[str, object]) -> None:
    with pytest.raises(InputError, match="device"):
        read_question(kind, {"model": "timm:resnet50"} | extra)
