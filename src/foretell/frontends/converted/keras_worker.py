"""Frontends: runs in the child process: converts a model of Keras or TensorFlow with tf2onnx.

Before the conversion, weights become inputs of the graph. tf2onnx folds constants into their neighbours, but not
inputs; so a batch normalisation stays one, a bias of zeros stays a bias, and a conversion takes seconds. Only the
weights of loops stay constants, because tf2onnx recognises LSTMs by them. After the conversion the inputs become
initializers without data.
"""

import importlib
import json
import re
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

OPSET = 18  # the newest that tf2onnx writes
MAX_CONFIG_BYTES = 1 << 28
_RUNS_CODE = {"Lambda": "a Lambda layer", "TorchModuleWrapper": "a pickled PyTorch module"}
_FOREIGN_GRAPHS = ("TFSMLayer", "JaxLayer", "FlaxLayer")
# operators that access files or Python
_UNSAFE_OPERATORS = {"ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc"}
_LOOPS = ("While", "StatelessWhile")
_COPIES = ("Identity", "Cast", "Enter", "ReadVariableOp")

Refuse = Callable[[str, str], Exception]


def convert(task: dict[str, Any], folder: Path, refuse: Refuse) -> tuple[Any, set[str]]:
    """Return the ONNX model of a task, and the names of weights that are not trained."""
    path = Path(task["path"])
    if task["format"] == "python":
        tf = importlib.import_module("tensorflow")
        return _from_function(tf, _built_function(tf, task, refuse))
    if task["format"] in ("keras", "h5"):
        _check_config(_keras_config(path, task["format"], refuse), task["trust"], refuse)
    elif not task["trust"]:
        _check_operators(path, task["format"], refuse)
    tf = importlib.import_module("tensorflow")
    if task["format"] == "graph_def":
        graph_def, inputs, outputs = _frozen_file(tf, path, refuse)
        return _to_onnx(tf, graph_def, inputs, outputs, {})
    if task["format"] == "saved_model":
        function = _signature(tf, path, refuse)
    else:
        function = _keras_function(tf, path, task, folder, refuse)
    return _from_function(tf, function)


# ── checks before loading ─────────────────────────────────────────────────────────────────────────────────────────────


def _keras_config(path: Path, kind: str, refuse: Refuse) -> Any:
    """Read the configuration of a saved Keras model as plain data."""
    try:
        if kind == "keras":
            with zipfile.ZipFile(path) as archive, archive.open("config.json") as file:
                return json.loads(file.read(MAX_CONFIG_BYTES))
        h5py = importlib.import_module("h5py")
        with h5py.File(path, "r") as file:
            text = file.attrs.get("model_config")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise refuse("model", f"it is not a Keras model, or it is damaged ({error}).") from error
    if text is None:
        raise refuse("model", "it contains only weights. Save the whole model: model.save('model.keras')")
    try:
        return json.loads(text)
    except ValueError as error:
        raise refuse("model", f"its configuration is not JSON ({error}).") from error


def _check_config(config: Any, trust: bool, refuse: Refuse) -> None:
    """Refuse a model that would run code, or that cannot be rebuilt with Keras alone."""
    for entry in _entries(config):
        name = entry.get("class_name")
        if not isinstance(name, str):
            continue
        if name in _RUNS_CODE and not trust:
            raise refuse(
                "untrusted", f"it has {_RUNS_CODE[name]}: reading it would run its code. If you trust it, add --trust."
            )
        if name in _FOREIGN_GRAPHS:
            raise refuse("model", f"it has a {name} layer, whose graph is not in the file.")
        module, registered = entry.get("module"), entry.get("registered_name")
        top = module.partition(".")[0] if isinstance(module, str) else ""
        custom = isinstance(registered, str) and not registered.startswith("keras")
        plain = top == "keras" or (top == "builtins" and name == "function")  # an activation of Keras, by its name
        if (top and not plain) or (custom and not top):
            shown = registered if custom else f"{module}.{name}"
            raise refuse(
                "model",
                f"it has the custom object {shown!r}, whose code is not in the file. Export the model in the program "
                "that has the code, model.export('folder'), and give that folder.",
            )


def _entries(config: Any) -> Iterable[dict[str, Any]]:
    """All dictionaries in a configuration, at any depth."""
    waiting = [config]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict):
            yield entry
            waiting.extend(entry.values())
        elif isinstance(entry, list):
            waiting.extend(entry)


def _check_operators(path: Path, kind: str, refuse: Refuse) -> None:
    """Refuse graphs with operators that access files or Python: loading may already run some of them."""
    graphs = importlib.import_module("tensorflow.core.framework.graph_pb2")
    saved = importlib.import_module("tensorflow.core.protobuf.saved_model_pb2")
    message = importlib.import_module("google.protobuf.message")
    try:
        if kind == "graph_def":
            parsed = [graphs.GraphDef.FromString(path.read_bytes())]
        else:
            model = saved.SavedModel.FromString((path / "saved_model.pb").read_bytes())
            parsed = [meta.graph_def for meta in model.meta_graphs]
    except (OSError, message.DecodeError) as error:
        raise refuse("model", "it is not a TensorFlow graph, or it is damaged.") from error
    for graph in parsed:
        for node in (*graph.node, *(n for function in graph.library.function for n in function.node_def)):
            if node.op in _UNSAFE_OPERATORS:
                raise refuse(
                    "untrusted",
                    f"its operator {node.op} accesses files or Python code. If you trust the model, add --trust.",
                )


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _keras_function(tf: Any, path: Path, task: dict[str, Any], folder: Path, refuse: Refuse) -> Any:
    """Load a Keras file and return its model as a function."""
    keras = importlib.import_module("keras")
    link = folder / f"source.{task['format']}"  # Keras recognises formats by the suffix
    link.symlink_to(path.resolve())
    try:
        model = keras.models.load_model(str(link), compile=False, safe_mode=not task["trust"])
    except (ValueError, TypeError, KeyError, OSError, AttributeError, ImportError) as error:
        text = " ".join(str(error).split())[:200]
        raise refuse("model", f"Keras cannot load it: {type(error).__name__}: {text}") from error
    return _model_function(tf, model, task["inputs"], refuse)


def _built_function(tf: Any, task: dict[str, Any], refuse: Refuse) -> Any:
    """The function of what ``net.py:build`` returned: a Keras model, or a concrete function of TensorFlow."""
    built, examples = task["built"]
    keras = importlib.import_module("keras")
    if isinstance(built, keras.Model):
        return _model_function(tf, built, task["inputs"] or _specs_of(examples), refuse)
    if hasattr(built, "structured_outputs") and hasattr(built, "graph"):
        return built
    raise refuse("model", f"{task['function']} returned {type(built).__name__}; it must return a keras.Model.")


def _specs_of(examples: Any) -> list[Any]:
    """Input specifications with the shapes and dtypes of example inputs."""
    example_list = examples if isinstance(examples, list | tuple) else () if examples is None else (examples,)
    return [
        [None, list(example.shape[1:]), getattr(example.dtype, "name", str(example.dtype))] for example in example_list
    ]


def _model_function(tf: Any, model: Any, user_inputs: list[Any], refuse: Refuse) -> Any:
    """A Keras model as a function with fixed inputs and an open batch."""
    keras = importlib.import_module("keras")
    model.trainable = True  # the weights of a frozen layer count as trained; running statistics stay untrained
    specs = _keras_specs(tf, model, user_inputs, refuse)

    def call(*tensors: Any) -> Any:
        # a functional model may take its inputs as a dictionary or a nested list
        structure = getattr(model, "_inputs_struct", None)
        if structure is not None:
            return model(keras.tree.pack_sequence_as(structure, list(tensors)), training=False)
        return model(tensors[0] if len(tensors) == 1 else list(tensors), training=False)

    return tf.function(call, input_signature=specs).get_concrete_function()


def _keras_specs(tf: Any, model: Any, user_inputs: list[Any], refuse: Refuse) -> list[Any]:
    """The inputs of the model; open dimensions get the sizes that the user gave."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        if not user_inputs:
            raise refuse("input", "its inputs are not known. Give them, without the batch: --input 224x224x3")
        return [tf.TensorSpec((None, *shape), _tf_dtype(dtype), name) for name, shape, dtype in user_inputs]
    by_name = {name: shape for name, shape, _ in user_inputs if name}
    unnamed = iter([shape for name, shape, _ in user_inputs if not name])
    specs = []
    for entry in inputs:
        name = re.sub(r"[^\w.]", "_", entry.name)
        sizes = by_name.get(name) or by_name.get(entry.name)
        if sizes is None and entry.name not in by_name:
            sizes = next(unnamed, None)
        shape = list(entry.shape)
        if sizes is not None and len(sizes) == len(shape) - 1:
            shape[1:] = [size if old is None else old for old, size in zip(shape[1:], sizes)]
        specs.append(tf.TensorSpec(shape, entry.dtype, name))
    return specs


def _tf_dtype(name: str | None) -> str:
    known = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64", None: "float32"}
    return known.get(name, str(name))


def _signature(tf: Any, path: Path, refuse: Refuse) -> Any:
    """Load a SavedModel and return its default signature."""
    try:
        loaded = tf.saved_model.load(str(path))
    except (OSError, ValueError, KeyError, AttributeError, tf.errors.OpError) as error:
        text = " ".join(str(error).split())[:200]
        raise refuse("model", f"TensorFlow cannot load it: {text}") from error
    signatures = dict(loaded.signatures)
    if not signatures:
        raise refuse(
            "model", "it has no signature. Save it with one: tf.saved_model.save(module, folder, signatures=f)"
        )
    function = signatures.get("serving_default") or signatures[min(signatures)]
    function.kept_alive = loaded  # its variables must outlive this call
    return function


def _frozen_file(tf: Any, path: Path, refuse: Refuse) -> tuple[Any, list[str], list[str]]:
    """Read a frozen graph; its inputs are placeholders, its outputs are nodes without readers."""
    graph_def = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    read = {name.lstrip("^").partition(":")[0] for node in graph_def.node for name in node.input}
    inputs = [f"{n.name}:0" for n in graph_def.node if n.op in ("Placeholder", "PlaceholderWithDefault")]
    no_output = ("Const", "NoOp", "Assert", "Placeholder")
    outputs = [f"{n.name}:0" for n in graph_def.node if n.name not in read and n.op not in no_output]
    if not inputs or not outputs:
        raise refuse("model", "it is not a frozen graph: it has no inputs or no outputs.")
    return graph_def, inputs, outputs


# ── converting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_function(tf: Any, function: Any) -> tuple[Any, set[str]]:
    freezing = importlib.import_module("tensorflow.python.framework.convert_to_constants")
    variables = {id(v.handle): v for v in function.graph.variables}
    named = {inner.op.name: variables[id(outer)] for outer, inner in function.graph.captures if id(outer) in variables}
    frozen = freezing.convert_variables_to_constants_v2(function, lower_control_flow=False, aggressive_inlining=True)
    inputs, outputs = [t.name for t in frozen.inputs], [t.name for t in frozen.outputs]
    return _to_onnx(tf, frozen.graph.as_graph_def(), inputs, outputs, named)


def _to_onnx(
    tf: Any, graph_def: Any, inputs: list[str], outputs: list[str], variables: dict[str, Any]
) -> tuple[Any, set[str]]:
    """Convert a graph whose weights are constants; returns the model and the weights that are not trained."""
    converter = importlib.import_module("tf2onnx.convert")
    optimizer = importlib.import_module("tf2onnx.optimizer.back_to_back_optimizer")
    optimizer._func_map.pop(("Conv", "BatchNormalization"), None)  # would fold the norm, which frameworks run
    optimizers = importlib.import_module("tf2onnx.optimizer")._optimizers
    for name in ("optimize_transpose", "einsum_optimizer"):  # frontends/normalise does both, without values
        optimizers.pop(name, None)
    weights = _open_weights(tf, graph_def)
    names = _weight_names(weights, variables)
    proto, _ = converter.from_graph_def(
        graph_def, input_names=[*inputs, *(f"{w}:0" for w in weights)], output_names=outputs, opset=OPSET
    )
    _lower_erfc(proto.graph)
    _drop_zero_biases(proto.graph)
    renamed = {f"{weight}:0": names[weight] for weight in weights}
    inputs_to_weights(proto.graph, renamed)
    _plain_input_names(proto.graph)
    # if no variable is marked as trainable, as in a frozen graph, every weight counts as trained
    trained = any(v.trainable for v in variables.values())
    return proto, {names[w] for w in weights if trained and w in variables and not variables[w].trainable}


def _open_weights(tf: Any, graph_def: Any) -> list[str]:
    """Turn the constants that are weights into placeholders; returns their names."""
    looping = _feeds_loops(graph_def)
    weights: list[str] = []
    filled: list[str] = []
    for node in graph_def.node:
        if node.op != "Const":
            continue
        value = node.attr["value"].tensor
        dtype, shape = tf.as_dtype(value.dtype), [d.size for d in value.tensor_shape.dim]
        if not (dtype.is_floating and shape):
            continue
        if node.name in looping:
            _fill(tf, node, dtype, shape, len(filled))
            filled.append(node.name)
            continue
        weights.append(node.name)
        # a copy: clearing the attributes would clear the shape, too
        size = type(value.tensor_shape)()
        size.CopyFrom(value.tensor_shape)
        node.op = "Placeholder"
        node.attr.clear()
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(size)
    return weights


def _fill(tf: Any, node: Any, dtype: Any, shape: list[int], seed: int) -> None:
    """Fill a constant with random values, which no optimiser can simplify or merge: neither 0 nor 1, no two equal."""
    np = importlib.import_module("numpy")
    values = np.random.default_rng(seed).uniform(0.1, 0.9, shape).astype(dtype.as_numpy_dtype)
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))


def _feeds_loops(graph_def: Any) -> set[str]:
    """The nodes whose values reach a loop through copies alone."""
    sources = {n.name: n for n in graph_def.node}
    waiting = [name for n in graph_def.node if n.op in _LOOPS for name in n.input]
    feeding: set[str] = set()
    while waiting:
        name = waiting.pop().lstrip("^").partition(":")[0]
        if name in sources and name not in feeding and sources[name].op in ("Const", *_COPIES):
            feeding.add(name)
            waiting.extend(sources[name].input)
    return feeding


def _weight_names(weights: Iterable[str], variables: dict[str, Any]) -> dict[str, str]:
    """Unique names with dots, such as "weights.block.conv.kernel".

    The ONNX front-end takes a constant with such a name for a weight, even if it has a single element.
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for weight in weights:
        variable = variables.get(weight)
        text = variable.name.partition(":")[0] if variable is not None else weight
        parts = [re.sub(r"\W", "_", part) for part in text.split("/") if part]
        name = ".".join(["weights", *parts])
        unique, number = name, 2
        while unique in used:
            unique, number = f"{name}_{number}", number + 1
        used.add(unique)
        names[weight] = unique
    return names


def inputs_to_weights(graph: Any, renamed: dict[str, str]) -> None:
    """Turn inputs of a graph into initializers without data, and rename them."""
    for entry in list(graph.input):
        if entry.name in renamed:
            tensor = graph.initializer.add()
            tensor.name, tensor.data_type = renamed[entry.name], entry.type.tensor_type.elem_type
            tensor.dims.extend(d.dim_value for d in entry.type.tensor_type.shape.dim)
            tensor.data_location = 1  # EXTERNAL: declares that the data is in another file; that file does not exist
            entry_data = tensor.external_data.add()
            entry_data.key, entry_data.value = "location", "weights"
            graph.input.remove(entry)
    _rename(graph, renamed)


def _plain_input_names(graph: Any) -> None:
    """Remove TensorFlow's ":0" from the names of inputs, so that --input can name them."""
    plain = {i.name: i.name.removesuffix(":0") for i in graph.input}
    for entry in graph.input:
        entry.name = plain[entry.name]
    _rename(graph, plain)


def _rename(graph: Any, names: dict[str, str]) -> None:
    """Rename tensors where they are read, also in sub-graphs, and as outputs."""
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in names:
                node.input[position] = names[name]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)
    for entry in graph.output:
        entry.name = names.get(entry.name, entry.name)


def _drop_zero_biases(graph: Any) -> None:
    """Drop the zeros that tf2onnx gives to a recurrent layer without a bias; real biases were filled by `_fill`."""
    numpy_helper = importlib.import_module("onnx.numpy_helper")
    values = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN") and len(node.input) > 3 and node.input[3] in values:
            bias = values[node.input[3]]
            if bias.data_location != 1 and not numpy_helper.to_array(bias).any():
                node.input[3] = ""


def _lower_erfc(graph: Any) -> None:
    """Replace erfc(x) by 1 − erf(x). ONNX has no Erfc, but tf2onnx leaves it in; Keras' GELU contains it."""
    helper = importlib.import_module("onnx.helper")
    nodes = [n for n in graph.node if n.op_type == "Erfc"]
    for number, node in enumerate(nodes):
        one, middle = f"foretell_one_{number}", f"foretell_erf_{number}"
        element = 1
        graph.initializer.append(helper.make_tensor(one, element, [], [1.0]))
        position = list(graph.node).index(node)
        name, source, target = node.name, node.input[0], node.output[0]
        graph.node.remove(node)
        graph.node.insert(position, helper.make_node("Sub", [one, middle], [target], name=f"{name}_sub"))
        graph.node.insert(position, helper.make_node("Erf", [source], [middle], name=name))
