"""Exported programs are read from their JSON; nothing else of the archive is opened."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import ForetellError, InputError, ModelError
from foretell.frontends.budget import Budget
from foretell.frontends.request import ModelRequest
from foretell.frontends.torch.pt2 import Pt2Frontend, graph_from_json, read_archive
from foretell.graph import graph_costs
from foretell.workflows.workload import load_graph


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("open('PWNED', 'w').close()",))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4))
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(torch.export.export(net.eval(), (torch.zeros(2, 3, 8, 8),)), str(path))
    return path


def rewritten(source: Path, target: Path, change: Any) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def test_costs_are_exact_at_any_batch(exported: Path) -> None:
    graph = load_graph(exported, batch_size=5)
    assert graph.parameter_count == 8 * 27 + 8 + 288 * 4 + 4
    assert graph_costs(graph).total.macs == 5 * (8 * 36 * 27 + 288 * 4)


def test_weights_and_samples_are_never_opened(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    payload = pickle.dumps(Payload())
    evil = rewritten(exported, tmp_path / "evil.pt2", lambda name, data: data if name.endswith(".json") else payload)
    assert load_graph(evil).hash == load_graph(exported).hash
    assert not (tmp_path / "PWNED").exists()


def test_input_shapes_are_fixed(exported: Path) -> None:
    with pytest.raises(InputError, match="Export it again"):
        load_graph(exported, input_shape="3x16x16")


def test_a_cut_archive_is_refused(exported: Path, tmp_path: Path) -> None:
    content, path = exported.read_bytes(), tmp_path / "cut.pt2"
    for cut in range(1, len(content), max(len(content) // 20, 1)):
        path.write_bytes(content[:cut])
        with pytest.raises(ModelError):
            load_graph(path)


def test_damaged_programs_raise_our_errors(exported: Path) -> None:
    """Every value of the JSON, replaced by something else, gives a graph or one of our errors."""
    with zipfile.ZipFile(exported) as archive:
        name = next(n for n in archive.namelist() if "/models/" in n and n.endswith(".json"))
        text = archive.read(name).decode()
    for position, replacement in enumerate((None, -1, "x", [], {}, 2**70, [{}]) * 12):
        content = json.loads(text)
        module = content["graph_module"]
        holders = [
            content,
            module,
            module["graph"],
            module["signature"],
            *module["graph"]["nodes"],
            *module["graph"]["tensor_values"].values(),
            *module["signature"]["input_specs"],
            *(i for n in module["graph"]["nodes"] for i in n["inputs"]),
        ]
        holder = holders[(position * 7) % len(holders)]
        key = sorted(holder)[position % len(holder)]
        holder[key] = replacement
        try:
            graph_costs(graph_from_json(content, "damaged"))
        except ForetellError:
            continue


def test_a_program_draws_from_the_budget() -> None:
    def program(nodes: int, outputs: int, name: str = "t", target: str = "aten.relu.default") -> dict[str, Any]:
        values = {f"{name}{i}": {"dtype": 7, "sizes": [{"as_int": 2}]} for i in range(nodes * outputs)}
        calls = [
            {
                "target": target,
                "inputs": [],
                "outputs": [{"as_tensors": [{"name": f"{name}{i * outputs + k}"} for k in range(outputs)]}],
            }
            for i in range(nodes)
        ]
        graph = {"tensor_values": values, "nodes": calls}
        return {"graph_module": {"graph": graph, "signature": {"input_specs": [], "output_specs": []}}}

    limits = {"nodes": 10, "edges": 100, "elements": 10, "bytes of names": 2000, "bytes of attributes": 10}
    assert len(graph_from_json(program(5, 1), "p", Budget("p", limits)).nodes) == 5
    for content, match in (
        (program(11, 1), "10 nodes"),
        (program(9, 8), "100 edges"),
        (program(5, 1, "n" * 200), "bytes of names"),
    ):
        with pytest.raises(ModelError, match=match):
            graph_from_json(content, "p", Budget("p", limits))


def test_items_are_counted_and_weights_are_not_hashed(tmp_path: Path) -> None:
    path = tmp_path / "many.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("top/models/model.json", b"[" + b"[]," * 100 + b"[]]")
        archive.writestr("top/data/weights/0", b"1")
    with pytest.raises(ModelError, match="more than 100 elements"):
        read_archive(path, Budget("many.pt2", {"elements": 100}))
    first = Pt2Frontend().fingerprint(ModelRequest(str(path)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("top/data/weights/1", b"2")
    assert Pt2Frontend().fingerprint(ModelRequest(str(path))) == first
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("top/models/other.json", b"{}")
    assert Pt2Frontend().fingerprint(ModelRequest(str(path))) != first


def test_names_that_no_file_could_hold_are_refused(exported: Path, tmp_path: Path) -> None:
    def change(name: str, data: bytes) -> bytes:
        return data.replace(b'"relu"', b'"\\ud800"') if "/models/" in name else data

    with pytest.raises(ModelError, match="not valid text"):
        load_graph(rewritten(exported, tmp_path / "x.pt2", change), use_cache=False)


def test_nodes_of_a_graph_network_are_no_batch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 4)

        def forward(self, x, edges):
            return torch.zeros(22, 4).index_add(0, edges[1], self.linear(x)[edges[0]])

    example = (torch.zeros(22, 6), torch.zeros(2, 70, dtype=torch.int64))
    torch.export.save(torch.export.export(Network(), example), tmp_path / "graph.pt2")
    graph = load_graph(tmp_path / "graph.pt2", use_cache=False)
    assert (graph.batch_size, graph_costs(graph).total.macs) == (1, 22 * 6 * 4)
    assert "no common first axis" in graph.warnings[0]
