"""Graphs of a table: as columns, as documents, or not there; what columns hold is tested beside them."""

import json

import pytest

pa = pytest.importorskip("pyarrow")

from foretell.datasets.graphs.columns import INTEGERS, TEXTS
from foretell.datasets.graphs.stored import StoredGraphs, documents_of, graph_type, with_columns
from foretell.errors import DataError
from foretell.graph.ir.serde import to_document
from foretell.testing import tiny_graph

DOCUMENT = to_document(tiny_graph())


def table(*documents: str | None) -> "pa.Table":
    return pa.table({"spec": list(range(len(documents))), "document": pa.array(documents, pa.string())})


def test_a_document_moves_to_columns_and_the_rest_of_its_row_stays() -> None:
    data = with_columns(table(DOCUMENT, "no graph", None))
    assert data.column_names == ["spec", "document", "graph"]
    assert data["document"].to_pylist() == [None, "no graph", None]
    assert [row is not None for row in data["graph"].to_pylist()] == [True, False, False]
    assert data["spec"].to_pylist() == [0, 1, 2]


def test_columns_give_back_the_document_word_for_word() -> None:
    data = with_columns(table(DOCUMENT, None))
    assert documents_of(data["graph"]).to_pylist() == [DOCUMENT, None]
    graphs = StoredGraphs(data, "here")
    assert len(graphs) == 2
    assert graphs[0] == tiny_graph()
    assert json.loads(graphs.document(0) or "") == json.loads(DOCUMENT)


def test_a_table_of_either_form_alone_is_read() -> None:
    old = StoredGraphs(table(DOCUMENT), "old")
    new = StoredGraphs(with_columns(table(DOCUMENT)).drop_columns(["document"]), "new")
    assert old[0] == new[0]


def test_a_row_without_a_graph_is_named() -> None:
    with pytest.raises(DataError, match=r"Row 1 of here\.parquet is not a graph"):
        StoredGraphs(with_columns(table(DOCUMENT, "{}")), "here.parquet")[1]


def test_the_type_has_a_field_for_every_column() -> None:
    assert {field.name for field in graph_type()} == {"name", "batch_size", "metadata", *TEXTS, *INTEGERS}
