"""A model that is ready to be measured."""

from foretell.profiling.source import Source


def test_a_source_says_only_what_its_builder_knew() -> None:
    torch_model, file = Source(None, (3, 8, 8)), Source(None, (), onnx_file="net.onnx", feeds={"x": (1, 4)})
    assert (torch_model.onnx_file, torch_model.spec, torch_model.family, dict(torch_model.feeds)) == ("", "", "", {})
    assert (file.onnx_file, file.feeds["x"]) == ("net.onnx", (1, 4))
