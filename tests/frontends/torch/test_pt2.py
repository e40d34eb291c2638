"""Exported programs are read from their JSON; nothing else of the archive is opened."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import ForetellError, InputError, ModelError
from foretell.frontends.torch.pt2 import graph_from_json
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
