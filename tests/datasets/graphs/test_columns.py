"""Graphs as columns: what comes back is what was written, whatever it was; damage is told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.datasets.graphs.columns import INTEGERS, pack, unpack
from foretell.datasets.graphs.stored import StoredGraphs, documents_of, with_columns
from foretell.datasets.parquet_files import TableWriter, arrow_table, check_pages, find_files, read_graphs, rename
from foretell.datasets.parquet_store import ParquetStore
from foretell.datasets.schema import SCHEMA_VERSION, TABLES
from foretell.errors import DataError, GraphError
from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.serde import to_document

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def chain(layers: int = 3, **facts: Any) -> Graph:
    """Layers with weights named as exporters name them, and a residual that leads back to the first."""
    tensors = {"x": Tensor("x", (1, 4), "fp32", "input", 0)}
    nodes, last = [], "x"
    for layer in range(layers):
        weight, out = f"p_blocks_{layer}_fc_weight", "linear" if not layer else f"linear_{layer}"
        tensors |= {weight: Tensor(weight, (4, 4), "fp32", "parameter"), out: Tensor(out, (1, 4), batch_axis=0)}
        module = f"blocks.{layer}.FC"
        nodes.append(Node(f"node_{out}", "Gemm", (last, weight, ""), (out,), {"transB": 1}, module=module, origin=out))
        last = out
    tensors["sum"] = Tensor("sum", (1, 4))
    nodes.append(Node("sum", "Add", ("x", last), ("sum",)))
    return Graph.build("chain", nodes, tensors, ["x"], ["sum"], **facts)


def with_node(node: Node) -> Graph:
    graph = chain(1)
    made = {name: Tensor(name, (2,), "int64") for name in node.outputs if name}
    return replace(graph, nodes=(*graph.nodes, node), tensors={**graph.tensors, **made})


ATTRIBUTES = {"one": 1, "truth": True, "half": 0.5, "whole": 1.0, "tiny": 1e-300, "text": "%d # ü {is}", "none": (),
              "many": (1, -2, 3), "floats": (0.1, 2.0), "texts": ("a", ""), "huge": 2**60}  # fmt: skip
UNUSED = {"spare": Tensor("spare", (), "bool", "buffer"), "z.0": Tensor("z.0", (0, 2**40), "fp64", "constant")}
GRAPHS = {
    "layers": chain(),
    "facts": chain(2, batch_size=8, warnings=["beware", "of 2 things"], metadata={"torch": "2.11", "b": ""}),
    "sorted": replace(chain(12), tensors=dict(sorted(chain(12).tensors.items()))),
    "unused": replace(chain(), tensors={**UNUSED, **chain().tensors}),
    "attributes": with_node(Node("every", "Custom", ("x",), ("y",), ATTRIBUTES, "my.domain", "", "o", "aten::custom")),
    "unknown": with_node(Node("007", "NoSuchOperator", ("", "x", "x"), ("", "y_1", "y_2"))),
    "no outputs": with_node(Node("assert_1", "Assert", ("x",), ())),
    "percent": with_node(Node("100%s_%d_1", "Relu", ("x",), ("50%_2_02_3a",))),
    "long number": with_node(Node("n_1", "Relu", ("x",), ("y_12345678901234567890",))),
    "empty": Graph("", (), {}, (), ()),
    "weights only": Graph("w", (), dict(UNUSED), (), ()),
}
KEPT_AS_TEXT = {
    "bodies": with_node(Node("if", "If", ("x",), ("y",), bodies=(chain(1), chain(2)))),
    "marker": with_node(Node("a{is}#", "Relu", ("x",), ("y",))),
}


def stored(*graphs: Graph) -> Any:
    return with_columns(pa.table({"document": pa.array([to_document(graph) for graph in graphs], pa.string())}))


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_a_graph_comes_back_from_columns(graph: Graph) -> None:
    data = stored(graph)
    assert data.column("document").null_count == 1, "nothing is a text"
    [again] = [StoredGraphs(data, "here")[0]]
    assert again == graph
    assert again.hash == graph.hash
    assert to_document(again) == to_document(graph), "the order of tensors and attributes and all types too"


@pytest.mark.parametrize("graph", KEPT_AS_TEXT.values(), ids=KEPT_AS_TEXT)
def test_graphs_that_columns_cannot_hold_are_stored_as_documents(graph: Graph) -> None:
    data = stored(graph)
    assert data.column("graph").null_count == 1
    graphs = StoredGraphs(data, "here")
    assert to_document(graphs[0]) == to_document(graph)
    assert json.dumps(json.loads(str(graphs.document(0)))) == json.dumps(json.loads(to_document(graph)))


def test_nan_and_infinity_are_restored() -> None:
    graph = with_node(Node("limits", "Clip", ("x",), ("y",), {"min": float("nan"), "max": float("inf")}))
    assert to_document(StoredGraphs(stored(graph), "here")[0]) == to_document(graph)


def test_a_document_that_is_no_graph_is_kept_word_for_word() -> None:
    texts = ["{}", '{"version": 1, "nodes": [1, 2]}', None, "no JSON"]
    data = with_columns(pa.table({"document": pa.array(texts, pa.string())}))
    assert data.column("document").to_pylist() == texts
    assert [StoredGraphs(data, "here").document(place) for place in range(4)] == texts
    with pytest.raises(DataError, match="Row 1 of here is not a graph"):
        StoredGraphs(data, "here")[1]


def test_rows_are_read_alone_and_from_the_middle_of_a_table() -> None:
    graphs = [*GRAPHS.values(), *KEPT_AS_TEXT.values()]
    part = stored(*graphs).slice(3, 9)
    stored_graphs = StoredGraphs(part, "here")
    assert len(stored_graphs) == 9
    assert [to_document(stored_graphs[place]) for place in (8, 0, 4)] == [
        to_document(graphs[place]) for place in (11, 3, 7)
    ]
    assert documents_of(stored(graphs[2]).column("graph")).to_pylist() == [to_document(graphs[2])]


def test_equal_layers_become_equal_numbers() -> None:
    columns = pack(chain(40))
    assert len(columns["operators"]) == 2
    assert len(columns["templates"]) < 14
    assert len({tuple(columns["edges"][start : start + 4]) for start in range(4, 160, 4)}) == 1
    assert set(columns["module_numbers"][1:]) == {1}


def test_what_is_held_and_fixed_comes_back() -> None:
    nodes = [Node("a", "Relu", ("x",), ("y",)), Node("b", "Exp", ("y",), ("z",)), Node("c", "Tanh", ("z",), ("u",))]
    tensors = {name: Tensor(name, (4,), "fp32", "input" if name == "x" else "activation") for name in "xyzu"}
    graph = Graph("g", tuple(nodes), tensors, ("x",), ("u",), held={"y": "c"}, fixed=frozenset({"z"}))
    assert pack(graph)["held"] == [2, 0, 0]
    assert StoredGraphs(stored(graph), "here")[0] == graph
    assert pack(chain())["held"] is None


words = st.text(st.sampled_from("ab.%_#{}019ü\n"), max_size=8)
values = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False), words, st.booleans())
attributes = st.dictionaries(words, st.one_of(values, st.lists(st.integers(), max_size=3).map(tuple)), max_size=3)


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
    kinds = st.sampled_from(["parameter", "buffer", "constant", "input"])
    names = draw(st.lists(words.filter(bool), min_size=1, max_size=9, unique=True))
    split = draw(st.integers(1, len(names)))
    tensors = {name: Tensor(name, draw(shapes), "fp32", draw(kinds)) for name in names[:split]}
    nodes, known = [], [*names[:split], ""]
    for name in names[split:]:
        inputs = tuple(draw(st.lists(st.sampled_from(known), max_size=3)))
        more = {"domain": draw(words), "module": draw(words), "origin": draw(st.sampled_from([name, "", "o_1"]))}
        nodes.append(Node(draw(words), draw(words), inputs, (name,), draw(attributes), **more))
        tensors[name] = Tensor(name, draw(shapes), "bf16")
        known.append(name)
    ordered = {name: tensors[name] for name in draw(st.permutations(list(tensors)))}
    some = st.lists(st.sampled_from(names), max_size=2).map(tuple)
    return Graph(draw(words), tuple(nodes), ordered, draw(some), draw(some), draw(st.integers(1, 3)))


@settings(max_examples=150, deadline=None)
@given(any_graphs())
def test_any_graph_comes_back(graph: Graph) -> None:
    assert to_document(StoredGraphs(stored(graph), "here")[0]) == to_document(graph)


DAMAGE: dict[str, Any] = {
    "edges": [9, 9, -1, 0, 1, 1, 0], "inputs": [-7], "outputs": [0, 0, 0, 0], "node_operator": [0, 5],
    "node_module": [0, 3], "tensor_type": [0, 1], "tensor_template": [99] * 4, "tensor_numbers": [1] * 9,
    "tensor_order": [3, 3, 3, 3], "operators": ["[]", "[]"], "types": ["4 fp32 nothing -"] * 3, "metadata": "{",
    "templates": [], "batch_size": 0, "held": [9],
}  # fmt: skip


@pytest.mark.parametrize("column", DAMAGE)
def test_a_damaged_row_is_refused(column: str) -> None:
    columns = pack(chain(1)) | {column: DAMAGE[column]}
    columns |= {name: np.array(columns[name], np.int32) for name in INTEGERS if columns[name] is not None}
    with pytest.raises(GraphError):
        unpack(columns)


def row(graph: Graph, spec: str, **more: Any) -> dict[str, Any]:
    facts = {"graph_hash": graph.hash, "spec": spec, "input_shape": "4", "mode": "inference"}
    return facts | {"document": to_document(graph), "parameters": graph.parameter_count} | more


def write(path: Path, *rows: dict[str, Any]) -> Path:
    columns = {name: [record.get(name) for record in rows] for name in TABLES["graphs"].columns}
    with TableWriter(path.with_suffix(".part"), TABLES["graphs"]) as writer:
        writer.write(arrow_table(TABLES["graphs"], columns))
        rename(writer.finish(), path)
    return path


def write_version_3(path: Path, *rows: dict[str, Any]) -> Path:
    """A file as it was written before graphs were columns."""
    data = arrow_table(TABLES["graphs"], {name: [r.get(name) for r in rows] for name in TABLES["graphs"].columns})
    parquet.write_table(data.replace_schema_metadata({"schema_version": "3"}), path, compression="zstd")
    return path


def test_a_file_has_columns_and_says_its_version(tmp_path: Path) -> None:
    path = write(tmp_path / "graphs.parquet", row(chain(), "a"), row(KEPT_AS_TEXT["bodies"], "b"))
    schema = parquet.read_schema(path)
    assert schema.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    assert {field.name for field in schema.field("graph").type} >= {"operators", "edges", "tensor_type"}
    [file] = find_files(tmp_path)
    assert [to_document(read_graphs(file)[place]) for place in (0, 1)] == [
        to_document(chain()), to_document(KEPT_AS_TEXT["bodies"]),
    ]  # fmt: skip


def test_both_forms_are_one_table_and_can_be_appended_to(tmp_path: Path) -> None:
    write_version_3(tmp_path / "graphs.parquet", row(chain(1), "old"))
    store = ParquetStore(tmp_path)
    new = [row(chain(layers), f"new {layers}") for layers in (2, 3)]
    added = {name: [record.get(name) for record in new] for name in TABLES["graphs"].columns}
    assert store.append("graphs", arrow_table(TABLES["graphs"], added)) == 2
    assert store.append("graphs", arrow_table(TABLES["graphs"], added)) == 0
    columns_read = store.query("SELECT spec, document FROM graphs ORDER BY spec").to_pydict()
    assert columns_read == {"spec": ["new 2", "new 3", "old"], "document": [to_document(chain(n)) for n in (2, 3, 1)]}
    assert store.query("SELECT spec FROM graphs WHERE document LIKE '%linear_2%'").to_pydict() == {"spec": ["new 3"]}
    store.close()
    files = {file.version: read_graphs(file) for file in find_files(tmp_path)}
    assert [files[3][0], files[SCHEMA_VERSION][0], files[SCHEMA_VERSION][1]] == [chain(1), chain(2), chain(3)]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "graphs.parquet", *(row(chain(layers), f"s{layers}") for layers in range(1, 30)))
    [file] = find_files(tmp_path)
    content = path.read_bytes()
    with parquet.ParquetFile(path) as opened:
        group = opened.metadata.row_group(0)
        chunks = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    place = chunks["graph.edges.list.element"]
    middle = place.data_page_offset + place.total_compressed_size // 2
    path.write_bytes(
        content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 8]) + content[middle + 8 :]
    )
    with pytest.raises(DataError, match=r"graphs\.parquet is damaged"):
        check_pages([file])
    path.write_bytes(content[:-40])
    with pytest.raises(DataError, match=r"graphs\.parquet is damaged"):
        find_files(tmp_path)


def test_an_index_out_of_range_names_its_file(tmp_path: Path) -> None:
    graph = pack(chain(1)) | {"edges": [9] * 7}
    data = pa.table({"graph": pa.array([graph], stored(chain(1)).schema.field("graph").type)})
    with pytest.raises(
        DataError, match=r"Row 0 of data/graphs\.parquet is not a graph: The columns of the graph 'chain'"
    ):
        StoredGraphs(data, "data/graphs.parquet")[0]


def test_files_of_before_and_after_version_7_are_one_table(tmp_path: Path) -> None:
    held = replace(chain(), held={})
    write(tmp_path / "graphs-0000000000000001.parquet", row(held, "new"))
    write(tmp_path / "graphs.parquet", row(chain(), "old"))
    data = parquet.read_table(tmp_path / "graphs.parquet")
    graph = data.column("graph").combine_chunks()
    kept = [field.name for field in graph.type if field.name != "held"]
    older = pa.StructArray.from_arrays([graph.field(name) for name in kept], names=kept)
    data = data.set_column(data.column_names.index("graph"), "graph", older)
    parquet.write_table(data.replace_schema_metadata({"schema_version": "6"}), tmp_path / "graphs.parquet")
    files = {file.path.stem: read_graphs(file)[0] for file in find_files(tmp_path)}
    assert files["graphs"].held is None
    assert files["graphs-0000000000000001"].held == {}
    rows = ParquetStore(tmp_path).query("SELECT spec, document FROM graphs ORDER BY spec").to_pylist()
    assert [json.loads(record["document"]).get("held") for record in rows] == [[], None]
