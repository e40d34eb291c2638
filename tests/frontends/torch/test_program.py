import pytest

from foretell.frontends.torch.program import TorchProgram, build_without_weights, export_error, one_line

torch = pytest.importorskip("torch")


class ReadsBack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [x.item() for x in torch.linspace(0, 1, 3)]
        self.linear = torch.nn.Linear(4, 4)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)


def test_a_constructor_that_reads_values_runs_and_its_weights_are_not_kept():
    register = torch.nn.Module.register_parameter
    module = build_without_weights(ReadsBack)
    assert module.rates == [0, 0.5, 1]
    assert {name: p.requires_grad for name, p in module.named_parameters() if p.is_meta} == {
        "frozen": False, "linear.weight": True, "linear.bias": True,
    }  # fmt: skip
    assert torch.nn.Module.register_parameter is register


def test_an_error_of_the_constructor_itself_is_raised_at_once():
    calls = []

    def build():
        calls.append(1)
        raise ValueError("heads do not divide the width")

    with pytest.raises(ValueError, match="heads do not divide"):
        build_without_weights(build)
    assert len(calls) == 1


def test_errors_of_the_exporter_are_one_short_line():
    program = TorchProgram("mine", None)
    assert "depends on the values" in str(export_error(program, RuntimeError("Could not run aten::nonzero")))
    text = str(export_error(program, RuntimeError("bad\n" * 200)))
    assert text.startswith("Cannot export mine: bad bad")
    assert text.endswith("…")
    assert "\n" not in text
    assert len(one_line(ValueError("x" * 201))) == 200
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
