"""Frontends: reads a ``.pt2`` archive from its JSON. It needs no torch, and opens neither weights nor pickles."""

import math
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, InputError, ModelError
from foretell.frontends.batch_inputs import refuse_false_batch, shared_batch
from foretell.frontends.budget import Budget, module_path, parse_json
from foretell.frontends.caged import read_caged
from foretell.frontends.request import MAX_ELEMENTS, ModelRequest
from foretell.frontends.torch.archive import check_members, members_digest, members_size, read_members
from foretell.frontends.torch.aten import AtenProgram, assemble
from foretell.frontends.torch.aten_operators import AtenCall, Ref
from foretell.graph import Graph, Tensor
from foretell.graph.ir.tensor import MAX_RANK, TensorKind

MAX_JSON_BYTES = 2**28
MAX_FAST_BYTES = 2**24  # of JSON: less than this is read at once, since it can take neither long nor much memory
SCHEMA_MAJOR = 8
# the numbers of torch._export.serde.schema.ScalarType
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "fp16", 7: "fp32", 8: "fp64", 9: "uint32",
    10: "complex64", 11: "complex128", 12: "bool",
    13: "bf16", 28: "uint16", 29: "fp8", 30: "fp8", 31: "fp8", 32: "fp8", 33: "fp8", 34: "uint32", 35: "uint64",
}  # fmt: skip
_KINDS: dict[str, TensorKind] = {
    "parameter": "parameter",
    "buffer": "buffer",
    "tensor_constant": "constant",
    "user_input": "input",
}


class Pt2Frontend:
    """Programs that ``torch.export.save`` wrote."""

    def load(self, request: ModelRequest) -> Graph:
        """Read the JSON of the program."""
        path = Path(request.source)
        if request.inputs:
            raise InputError(
                f"{path.name} was exported for fixed input shapes; --input cannot change them. Export it again, or "
                "use --batch-size."
            )
        check_members(path)
        if request.has_limits or members_size(path, "models/", ".json") > MAX_FAST_BYTES:
            return read_caged("foretell.frontends.torch.pt2:read_program", request)
        return read_program(request)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The description of the program, which is all that is read: weights are neither hashed nor opened."""
        path = Path(request.source)
        members = read_members(path, "models/", ".json", MAX_JSON_BYTES)
        return f"{path.name} {members_digest(members)}"


def read_program(request: ModelRequest) -> Graph:
    """Read an archive; a large one in a cage."""
    path = Path(request.source)
    budget = Budget(path.name)
    return graph_from_json(read_archive(path, budget), path.name, budget)


def read_archive(path: Path, budget: Budget | None = None) -> dict[str, Any]:
    """Read the description of the program: ``models/*.json`` in the archive, and nothing else."""
    check_members(path)
    texts = read_members(path, "models/", ".json", MAX_JSON_BYTES)
    if not texts:
        raise ModelError(f"{path.name} contains no exported program. Write it with torch.export.save.")
    try:
        content = parse_json(next(iter(texts.values())), budget or Budget(path.name))
    except ModelError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is damaged: its program is not JSON.") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if major != SCHEMA_MAJOR:
        raise ModelError(
            f"{path.name} has export schema {str(major)[:20]}; foretell reads {SCHEMA_MAJOR}. Export it with a "
            "recent PyTorch."
        )
    return dict(content)


def graph_from_json(content: dict[str, Any], name: str, budget: Budget | None = None) -> Graph:
    """Return the graph of a serialised program."""
    try:
        program, has_batch = _program(content, name, budget or Budget(name))
        return refuse_false_batch(assemble(program), has_batch=has_batch)
    except ForetellError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, StopIteration, RuntimeError) as error:
        reason = " ".join(repr(error).split())[:200]
        raise ModelError(f"{name} does not follow the export schema: {reason}") from error


def _program(content: dict[str, Any], name: str, budget: Budget) -> tuple[AtenProgram, bool]:
    """Turn the JSON of an exported program into calls and tensors; and whether its inputs may have a batch."""
    module = content["graph_module"]
    graph, signature = module["graph"], module["signature"]
    budget.draw("nodes", len(graph["nodes"]))
    budget.draw("edges", len(graph["tensor_values"]))
    budget.draw_names(graph["tensor_values"])
    kinds: dict[str, TensorKind] = {}
    inputs = []
    for spec in signature["input_specs"]:
        kind, body = next(iter(spec.items()))
        argument = body["arg"].get("as_tensor", body["arg"])
        key = argument.get("name") if isinstance(argument, dict) else None
        if isinstance(key, str) and key in graph["tensor_values"]:
            kinds[key] = _KINDS.get(kind, "constant")
            if kind == "user_input":
                inputs.append(key)
    tensors = {key: _tensor(key, meta, kinds.get(key, "activation")) for key, meta in graph["tensor_values"].items()}
    shared = shared_batch(tensors[key].shape for key in inputs)
    batch_size = 1 if shared is None else shared
    for key in inputs:
        t = tensors[key]
        axis = 0 if shared is not None and t.shape and t.shape[0] == batch_size else None
        tensors[key] = Tensor(t.name, t.shape, t.dtype, t.kind, axis)
    calls = []
    for node in graph["nodes"]:
        outputs = tuple(name for output in node["outputs"] for name in _names(output))
        arguments = {a["name"]: _value(a["arg"]) for a in node["inputs"]}
        budget.draw("edges", len(outputs) + sum(len(v) if isinstance(v, list) else 1 for v in arguments.values()))
        budget.draw_names((*outputs, str(node.get("name") or ""), str(node["target"])))
        # "key,path,class;key,path,class;…" from the outermost to the innermost module
        stack = str((node.get("metadata") or {}).get("nn_module_stack", ""))
        path = stack.split(";")[-1].split(",")[1] if "," in stack else ""
        calls.append(
            AtenCall(
                str(node.get("name") or (outputs[0] if outputs else "")),
                str(node["target"]),
                arguments,
                outputs,
                module_path(path.partition("@")[0]),
            )
        )
    user_outputs = [spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec]
    returned = tuple(dict.fromkeys(n for argument in user_outputs for n in _names(argument)))
    return AtenProgram(name, tuple(calls), tensors, tuple(inputs), returned, max(batch_size, 1)), shared is not None


def _tensor(name: str, meta: dict[str, Any], kind: TensorKind) -> Tensor:
    if len(meta["sizes"]) > MAX_RANK:
        raise ModelError(f"Tensor {name!r} has {len(meta['sizes'])} axes; at most {MAX_RANK} are allowed.")
    shape = tuple(_size(d) for d in meta["sizes"])
    if any(d < 0 for d in shape) or math.prod(shape) > MAX_ELEMENTS:
        raise ModelError(f"Tensor {name!r} has the impossible shape {str(shape)[:80]}.")
    return Tensor(name, shape, _DTYPES.get(meta["dtype"], "fp32"), kind)


def _size(size: dict[str, Any]) -> int:
    """A size; a symbolic size has the value that the program was exported with."""
    if "as_int" in size:
        return int(size["as_int"])
    hint = (size.get("as_expr") or {}).get("hint") or {}
    if "as_int" not in hint:
        raise ModelError(f"A size of the program depends on data: {(size.get('as_expr') or {}).get('expr_str')}.")
    return int(hint["as_int"])


def _names(argument: dict[str, Any]) -> list[str]:
    kind, value = next(iter(argument.items()))
    if kind == "as_tensor":
        return [str(value["name"])]
    if kind == "as_tensors":
        return [str(v["name"]) for v in value]
    return [""] if kind == "as_none" else []


def _value(argument: dict[str, Any]) -> Any:
    """An argument of a call as a Python value; tensors become `Ref`."""
    kind, value = next(iter(argument.items()))
    if kind == "as_tensor":
        return Ref(value["name"])
    if kind in ("as_tensors", "as_nested_tensors"):
        return [Ref(v["name"]) for v in value] if kind == "as_tensors" else None
    if kind == "as_optional_tensors":
        return [Ref(v["as_tensor"]["name"]) for v in value if "as_tensor" in v]
    if kind in ("as_int", "as_float", "as_string", "as_bool", "as_ints", "as_floats", "as_strings", "as_bools"):
        return value
    if kind == "as_sym_int":
        return value.get("as_int", 0) if isinstance(value, dict) else 0
    if kind == "as_sym_ints":
        return [v.get("as_int", 0) for v in value]
    return None
