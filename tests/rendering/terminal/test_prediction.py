import pytest

from foretell import predict
from foretell.graph import graph_costs
from foretell.rendering.terminal.numbers import number
from foretell.rendering.terminal.prediction import cost_table, module_tree, show_prediction
from foretell.testing import tiny_graph, tiny_onnx


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.5, "0.5"), (999.4, "999"), (1000.0, "1,000")])
def test_numbers_as_people_read_them(value, text):
    assert number(value) == text


def test_every_metric_of_a_prediction_is_shown_and_no_other(capsys):
    show_prediction(predict(tiny_onnx(), device="t4", batch_size=4), "tiny")
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("latency", "throughput", "peak memory", "energy", "power", "uncalibrated"))
    assert "occupancy" not in shown


def test_memory_beyond_the_device_is_plain_to_see(capsys):
    show_prediction(predict(tiny_onnx(), device="p4", batch_size=2**20), "tiny")
    shown = capsys.readouterr().out
    assert shown.startswith("Does not fit on p4: about ")
    assert "░" not in shown  # the bar is full


def test_a_table_ends_with_the_total():
    costs = graph_costs(tiny_graph())
    table = cost_table(costs.by_operator(), "operator", costs.total)
    assert list(table.columns[0].cells)[-1] == "total"
    assert table.row_count == len(costs.by_operator()) + 1


def test_the_tree_has_a_branch_for_every_module():
    tree = module_tree(graph_costs(tiny_graph()), "tiny", depth=1)
    assert [str(b.label).split()[0] for b in tree.children] == ["conv", "act", "pool", "fc"]
