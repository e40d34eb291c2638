"""Datasets: stored graphs: the graphs of a table, as columns where these give back the same document.

A row has its graph in ``graph`` (`foretell.datasets.graphs.columns`) or as JSON in ``document``. Files of schema
versions 1 to 3 have only documents; up to version 6 nothing says what a program held. A document that columns do not
give back exactly (a graph with bodies, or a text that is not a graph) stays a document: writing never loses
anything.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from foretell.datasets.graphs.columns import INTEGERS, TEXTS, Columns, Numbers, pack, unpack
from foretell.errors import DataError, GraphError
from foretell.graph import Graph
from foretell.graph.ir.serde import from_document, to_document
from foretell.optional import require

GRAPH, DOCUMENT = "graph", "document"
_SINGLE = ("name", "batch_size", "metadata")
_OPTIONAL = ("tensor_order", "held")  # null, or not in an older file


def graph_type() -> Any:
    """The Arrow type of a graph."""
    arrow = _arrow()
    fields = [("name", arrow.string()), ("batch_size", arrow.int32()), ("metadata", arrow.string())]
    fields += [(name, arrow.list_(arrow.string())) for name in TEXTS]
    fields += [(name, arrow.list_(arrow.int32())) for name in INTEGERS]
    return arrow.struct(fields)


def graph_sql(duckdb: Any) -> Any:
    """The type of a graph in DuckDB."""
    fields = {"name": "VARCHAR", "batch_size": "INTEGER", "metadata": "VARCHAR"}
    fields |= dict.fromkeys(TEXTS, "VARCHAR[]") | dict.fromkeys(INTEGERS, "INTEGER[]")
    return duckdb.struct_type(fields)


def with_columns(data: Any) -> Any:
    """A table of graphs with its documents moved to columns in ``graph``; what columns cannot hold stays a text."""
    arrow = _arrow()
    documents = data.column(DOCUMENT).to_pylist()
    graphs = [_lossless_columns(document) for document in documents]
    remaining = [None if graph else document for graph, document in zip(graphs, documents, strict=True)]
    position = data.column_names.index(DOCUMENT)
    data = data.set_column(position, DOCUMENT, arrow.array(remaining, arrow.string()))
    return data.append_column(GRAPH, arrow.array(graphs, graph_type()))


def _lossless_columns(document: str | None) -> Columns | None:
    """The columns of a document, or None where they would not give back the same document."""
    if document is None:
        return None
    try:
        columns = pack(from_document(document))
        # try the way back at once: what cannot be restored exactly is not packed
        restored = unpack(columns | {name: _array(columns[name]) for name in INTEGERS})
        return columns if json.loads(to_document(restored)) == json.loads(document) else None
    except (GraphError, ValueError, OverflowError, RecursionError):
        return None


def _array(values: list[int] | None) -> Numbers | None:
    return None if values is None else np.array(values, np.int32)


class StoredGraphs:
    """The graphs of a table that has ``graph``, ``document`` or both; each graph is built when it is accessed.

    ``location`` is what error messages name.
    """

    def __init__(self, data: Any, location: str) -> None:
        self._data = data
        self._location = location

    def __len__(self) -> int:
        return int(self._data.num_rows)

    def __getitem__(self, place: int) -> Graph:
        try:
            if self._has_columns(place):
                return unpack(self._columns(place))
            return from_document(self._documents[place].as_py() or "")
        except GraphError as error:
            raise DataError(f"Row {place} of {self._location} is not a graph: {error}") from error

    def document(self, place: int) -> str | None:
        """A graph as JSON; None where the row has none."""
        if self._has_columns(place):
            return to_document(self[place])
        return self._documents[place].as_py()  # type: ignore[no-any-return]

    def _has_columns(self, place: int) -> bool:
        return self._graphs is not None and bool(self._graphs[place].is_valid)

    def _columns(self, place: int) -> Columns:
        columns: Columns = {name: self._graphs.field(name)[place].as_py() for name in _SINGLE}
        for name, (offsets, values) in self._lists.items():
            # a view into one array for all rows: no Python list for each number
            part = values[offsets[place] : offsets[place + 1]]
            columns[name] = part.to_pylist() if name in TEXTS else part
        for name in _OPTIONAL:
            if name not in self._lists or not self._graphs.field(name)[place].is_valid:
                columns[name] = None
        return columns

    @cached_property
    def _graphs(self) -> Any:
        return _one_array(self._data, GRAPH)

    @cached_property
    def _documents(self) -> Any:
        documents = _one_array(self._data, DOCUMENT)
        return _arrow().nulls(len(self), _arrow().string()) if documents is None else documents

    @cached_property
    def _lists(self) -> Mapping[str, tuple[Any, Any]]:
        """For each column the offsets of the rows' lists, and all values."""
        lists_by_name = {}
        present = {field.name for field in self._graphs.type}
        for name in (name for name in (*TEXTS, *INTEGERS) if name in present):
            lists = self._graphs.field(name)
            values = lists.values if name in TEXTS else lists.values.to_numpy()
            lists_by_name[name] = (lists.offsets.to_numpy(), values)
        return lists_by_name


def documents_of(graphs: Any) -> Any:
    """The graphs of an Arrow column as JSON texts; null where there is none."""
    arrow = _arrow()
    stored = StoredGraphs(arrow.table({GRAPH: graphs}), "the store")
    return arrow.array([stored.document(place) for place in range(len(stored))], arrow.string())


def _one_array(data: Any, name: str) -> Any:
    if name not in data.column_names:
        return None
    column = data.column(name)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _arrow() -> Any:
    return require("pyarrow", extra="data", purpose="Reading and writing tables")
