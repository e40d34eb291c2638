import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from lab.papers.lilou.patterns import COUNT, PATTERNS, joined, left_by_runtime, predicted_kernels, write_file


@pytest.mark.parametrize("name", ["add-sqrt-div-mul-add", "div-erf-add-mul-mul"])
def test_onnx_runtime_joins_what_a_file_spells_out_and_foretell_knows(name, tmp_path):
    write_file(name, tmp_path / "pattern.onnx")
    left = left_by_runtime(tmp_path / "pattern.onnx")
    assert not {"Sqrt", "Erf"} & set(left)
    told = predicted_kernels(tmp_path / "pattern.onnx")
    assert joined(told["foretell"], PATTERNS[name]) == COUNT
    assert joined(told["rules"], PATTERNS[name]) == 0


def test_every_pattern_is_written_with_its_operators(tmp_path):
    onnx = pytest.importorskip("onnx")
    for name, pattern in PATTERNS.items():
        write_file(name, tmp_path / "pattern.onnx", count=2)
        ops = [node.op_type for node in onnx.load(tmp_path / "pattern.onnx").graph.node]
        assert all(ops.count(op) >= 2 * pattern.count(op) for op in pattern), name
