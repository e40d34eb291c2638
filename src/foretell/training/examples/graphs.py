"""Training: graphs: the graph of every measured model, which a front-end reads from the model's code.

A graph depends on the architecture, the shape of one item and the mode; batch size and precision are applied to it
later. Making one takes a second or more. So each graph goes to a journal when it is made; a sweep over all measured
models can be stopped and continued, and is written as Parquet at its end.
"""

import hashlib
import importlib.metadata
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.datasets import parquet_files
from foretell.datasets.parquet_files import TableFile, TableWriter, arrow_table, find_files, read_columns, rename
from foretell.datasets.schema import TABLES
from foretell.errors import ForetellError, ModelError
from foretell.frontends.huggingface.tracing import as_if_run, bind_forward, cache_tensors, fill_cache
from foretell.frontends.torch.export import TRACE_BATCH, graph_from_program
from foretell.frontends.torch.program import TorchProgram, build_without_weights, one_line
from foretell.graph import Graph, Node
from foretell.graph.ir.serde import from_document, to_document
from foretell.profiling.campaign.journal import Journal, read_records, read_traces
from foretell.profiling.workload import Workload, parse_spec, shape_text

GRAPH_BATCH = 1  # of the stored graphs: `Graph.with_batch` gives any other
_TABLE = "graphs"
_MEASURED = ("measurements", "compiled")
_KEY = ("spec", "input_shape", "mode")


@dataclass(frozen=True, order=True)
class GraphKey:
    """What a graph depends on."""

    spec: str
    input_shape: tuple[int, ...]
    mode: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "GraphKey":
        """The key of a measured row."""
        return cls(row["spec"], tuple(int(size) for size in row["input_shape"].split("x")), row["mode"])

    def workload(self, batch_size: int) -> Workload:
        """A workload of this key, in single precision."""
        optimizer = "sgd" if self.mode == "training" else ""
        return Workload(self.spec, batch_size, self.input_shape, "fp32", self.mode, optimizer)


def make_graph(key: GraphKey) -> Graph:
    """Build the architecture without weights, export it, and read its graph at batch 1."""
    try:
        program = _program(key)
    except ForetellError:
        raise
    except Exception as error:  # the architecture's own code runs here and may raise anything
        raise ModelError(f"Cannot build {key.spec} without weights: {one_line(error)}") from error
    graph = graph_from_program(program, batch_size=TRACE_BATCH, training=key.mode == "training")
    return replace(graph.with_batch(GRAPH_BATCH), metadata={"torch": importlib.metadata.version("torch")})


def _program(key: GraphKey) -> TorchProgram:
    from foretell.profiling.steps import weight_dtype
    from foretell.profiling.zoos.registry import build

    workload = key.workload(TRACE_BATCH)
    # real weights of large models would not fit into memory, and a graph needs only shapes
    built = build_without_weights(lambda: build(key.spec))
    built.model.to("meta")  # a constructor that computes real values leaves its buffers on the host
    if key.mode in ("prefill", "decode"):
        inputs = built.make_inputs(workload, "meta", None)
        tokens = dict(inputs.kwargs)["input_ids"]
        inputs_by_name = (
            _bind_prefill(built.model, tokens) if key.mode == "prefill" else _bind_decode(built.model, tokens)
        )
        return TorchProgram(key.spec, built.model, (), inputs_by_name)
    inputs = built.make_inputs(workload, "meta", weight_dtype(workload))
    if parse_spec(key.spec).zoo not in ("hf", "llm"):
        return TorchProgram(key.spec, built.model, inputs.args, dict(inputs.kwargs))
    return TorchProgram(key.spec, built.model, (), _bind_forward(built.model, inputs.args, dict(inputs.kwargs)))


def _bind_forward(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    tensors = {name: value for name, value in kwargs.items() if hasattr(value, "shape")}
    options = {name: value for name, value in kwargs.items() if name not in tensors}
    if args:
        tensors[model.main_input_name] = args[0]
    if getattr(getattr(model, "config", None), "apply_spec_augment", False):
        model.config.apply_spec_augment = False  # it would draw random masks on the host
    bind_forward(model, tensors, lambda forward, feed: forward(**feed, **options))
    return tensors


def _bind_prefill(model: Any, tokens: Any) -> dict[str, Any]:
    options = {"use_cache": True, "logits_to_keep": 1}
    bind_forward(model, {"input_ids": tokens}, lambda forward, feed: _outputs(forward(**feed, **options)))
    return {"input_ids": tokens}


def _bind_decode(model: Any, tokens: Any) -> dict[str, Any]:
    with as_if_run(model):  # running the prompt on the meta device gives the cache its shapes
        cache = model(input_ids=tokens, use_cache=True, logits_to_keep=1).past_key_values
    token = tokens[:, :1].clone()
    inputs = {"input_ids": token, "position_ids": token.clone()}
    inputs |= {name: tensor.detach() for name, tensor in cache_tensors(cache).items()}

    def step(forward: Any, feed: dict[str, Any]) -> Any:
        filled = fill_cache(cache, feed)
        tensors = {name: feed[name] for name in ("input_ids", "position_ids")}
        return _outputs(forward(**tensors, past_key_values=filled, use_cache=True))

    bind_forward(model, inputs, step)
    return inputs


def _outputs(output: Any) -> dict[str, Any]:
    return {"logits": output.logits, "cache": output.past_key_values}


def without_origins(graph: Graph) -> Graph:
    """The same graph, smaller on disk: an origin that only one node has groups nothing."""
    counts = Counter(node.origin for node in graph.nodes)
    nodes = tuple(replace(node, origin="") if counts[node.origin] == 1 else node for node in graph.nodes)
    return replace(graph, nodes=nodes)


def measured_keys(store: Path) -> dict[GraphKey, str]:
    """The graphs that the measurements below ``store`` need, with their families; traced models come first."""
    traced: set[str] = set()
    rows: list[dict[str, Any]] = []
    for file in find_files(store):
        if file.table == "kernels":
            traced |= set(read_columns(file, ("workload_id",)).column(0).unique().to_pylist())
        elif file.table in _MEASURED:
            rows += read_columns(file, ("workload_id", "status", "family", *_KEY)).to_pylist()
    rows = [row for row in rows if row["status"] == "ok"]
    # graphs of traced workloads first: they are of use even if the sweep is stopped
    rows.sort(key=lambda row: (row["workload_id"] not in traced, row["family"] or "", GraphKey.of(row)))
    return {GraphKey.of(row): row["family"] or "" for row in rows}


def collect_graphs(
    keys: Mapping[GraphKey, str],
    out: Path,
    *,
    done: Iterable[GraphKey] = (),
    again: bool = False,
    limit_s: int = 180,
    on_progress: Callable[[int, int, GraphKey, str], None] = lambda *_: None,
) -> Counter[str]:
    """Make the graphs of ``keys`` that are neither ``done`` nor in the journal of ``out``; count the outcomes.

    With ``again``, graphs that failed before are tried once more.
    """
    counts: Counter[str] = Counter()
    journal = Journal(out)
    journal.open()
    # the graph itself counts, not its record: it may have been damaged, or written just before a kill
    known = set(done) | {GraphKey.of(line) for line in read_traces(out) if line.get("kind") == _TABLE}
    known |= {GraphKey.of(line) for line in read_records(out) if line["status"] != "ok" and not again}
    try:
        for number, (key, family) in enumerate(keys.items()):
            if key in known:
                continue
            line: dict[str, Any] = {"kind": "graph", "spec": key.spec, "input_shape": shape_text(key.input_shape)}
            line |= {"mode": key.mode, "family": family, "status": "ok", "error": None}
            try:
                with _time_limit(limit_s):
                    graph = without_origins(make_graph(key))
            except (ForetellError, TimeoutError) as error:
                line |= {"status": "build_error", "error": str(error)[:300]}
            else:
                facts = {"graph_hash": graph.hash, "batch_size": graph.batch_size, "nodes": len(graph.nodes)}
                facts |= {"parameters": graph.parameter_count, "torch": graph.metadata["torch"]}
                journal.append_trace({**line, **facts, "kind": _TABLE, "document": to_document(graph)})
            journal.append(line)
            counts[line["status"]] += 1
            on_progress(number + 1, len(keys), key, line["error"] or "")
    finally:
        journal.close()
    return counts


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread after a time; in other threads there is no limit."""
    # Python delivers signals to the main thread only
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def stored_keys(folder: Path) -> set[GraphKey]:
    """The keys of the graphs in the Parquet files below ``folder``."""
    if not folder.exists():
        return set()
    return {key for _, rows in _stored(folder) for _, key, _ in rows}


def unwatched_keys(folder: Path) -> set[GraphKey]:
    """The keys of stored graphs that do not say what their program holds: older foretells did not watch it."""
    keys: set[GraphKey] = set()
    for file, rows in _stored(folder):
        graphs = parquet_files.read_graphs(file)
        keys |= {key for place, key, _ in rows if graphs[place].held is None}
    return keys


def _stored(folder: Path) -> Iterator[tuple[TableFile, list[tuple[int, GraphKey, str]]]]:
    """By file the position, key and hash of stored graphs, without those that a fusion campaign stored."""
    for file in find_files(folder):
        if file.table == _TABLE:
            rows = read_columns(file, (*_KEY, "graph_hash", "campaign_id")).to_pylist()
            # graphs of a campaign are a compiler's input and have other nodes
            own = [(place, row) for place, row in enumerate(rows) if not row["campaign_id"]]
            yield file, [(place, GraphKey.of(row), row["graph_hash"]) for place, row in own]


def write_graphs(journal: Path, folder: Path, *, renewed: Iterable[GraphKey] = ()) -> Path | None:
    """Write the journal's graphs that ``folder`` lacks into one more file, similar ones next to each other.

    Graphs of ``renewed`` keys that the journal has replace those of the folder, if they have the same nodes: else the
    architecture's code has changed since it was measured, and the old graph is the true one.
    """
    wanted = set(renewed)
    made = {
        GraphKey.of(line): from_document(str(line["document"])).nodes
        for line in read_traces(journal)
        if line.get("kind") == _TABLE and GraphKey.of(line) in wanted
    }
    replaced = {key for key, _, graph in read_graphs(folder, list(made)) if _names(graph.nodes) == _names(made[key])}
    stored = stored_keys(folder) - replaced
    lines = [line for line in read_traces(journal) if line.get("kind") == _TABLE and GraphKey.of(line) not in stored]
    if not lines:
        return None
    # similar graphs next to each other compress better
    lines.sort(key=lambda line: (str(line["family"]), str(line["mode"]), GraphKey.of(line)))
    folder.mkdir(parents=True, exist_ok=True)
    old = [file for file, rows in _stored(folder) if not replaced.isdisjoint(key for _, key, _ in rows)]
    path = _write_rows(lines, folder)
    # the new graphs are on disk: now the rows that they replace may go
    for file in old:
        remaining = _rows_without(file, replaced)
        if remaining:
            _write_rows(remaining, folder)
        file.path.unlink()
    return path


def _names(nodes: Iterable[Node]) -> list[tuple[str, str]]:
    return [(node.name, node.op) for node in nodes]


def _rows_without(file: TableFile, keys: set[GraphKey]) -> list[dict[str, Any]]:
    """The rows of a file whose graphs are not among ``keys``."""
    rows = read_columns(file, [name for name in TABLES[_TABLE].columns if name != "document"]).to_pylist()
    graphs = parquet_files.read_graphs(file)
    return [
        row | {"document": graphs.document(place)}
        for place, row in enumerate(rows)
        if row["campaign_id"] or GraphKey.of(row) not in keys
    ]


def _write_rows(rows: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write rows of graphs into a file of their own."""
    table = TABLES[_TABLE]
    columns = {name: [row.get(name) for row in rows] for name in table.columns}
    with TableWriter(folder / f".{_TABLE}.part", table) as writer:
        writer.write(arrow_table(table, columns))
        partial = writer.finish()
        path = folder / f"{_TABLE}-{hashlib.sha256(partial.read_bytes()).hexdigest()[:16]}.parquet"
        rename(partial, path)
    return path


def read_graphs(folder: Path, keys: Sequence[GraphKey]) -> Iterator[tuple[GraphKey, str, Graph]]:
    """The stored graphs of ``keys``, with their hashes, in the order of the files."""
    remaining = set(keys)
    for file, rows in _stored(folder):
        requested_rows = [row for row in rows if row[1] in remaining]
        graphs = parquet_files.read_graphs(file) if requested_rows else ()
        for place, key, graph_hash in requested_rows:
            if key in remaining:
                remaining.discard(key)
                yield key, graph_hash, graphs[place]
