"""Make examples/resnet50.onnx: the graph of timm's ResNet-50, exported on the meta device, without weights.

python examples/make_resnet50.py examples/resnet50.onnx      needs foretell[vision] and onnxscript
"""

import sys

import numpy as np
import onnx
import onnx_ir
import torch
from onnxscript import optimizer

from foretell.optional import repair_torchvision

KEPT_NOTES = ("pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes")


def main(path: str) -> None:
    repair_torchvision()
    import timm

    with torch.device("meta"):
        model, image = timm.create_model("resnet50").eval(), torch.empty(1, 3, 224, 224)
    program = torch.onnx.export(model, (image,), dynamo=True, verbose=False, optimize=False)
    _fold(program.model)
    proto = onnx.shape_inference.infer_shapes(onnx_ir.to_proto(program.model), data_prop=True)
    for node in proto.graph.node:
        kept = [p for p in node.metadata_props if p.key in KEPT_NOTES]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.doc_string = ""
    onnx.save(proto, path)
    print(f"{path}: {len(proto.graph.node)} nodes, {proto.ByteSize():,} bytes")


def _fold(model: onnx_ir.Model) -> None:
    """Fold the exporter's constants, then leave weights as external data that is not there."""
    for i, value in enumerate(model.graph.initializers.values()):
        tensor = value.const_value
        # unique and not zero, or folding merges weights; zero strides, so that any size costs one element
        fill = np.array(1.5 + (i + 1) * 2**-7, dtype=tensor.dtype.numpy())
        value.const_value = onnx_ir.Tensor(
            np.broadcast_to(fill, tensor.shape.numpy()), dtype=tensor.dtype, shape=tensor.shape, name=tensor.name
        )
    # not the exporter's own optimisation: it folds BatchNorm into Conv, and PyTorch runs both
    optimizer.fold_constants(model, input_size_limit=4096, output_size_limit=4096)
    optimizer.remove_unused_nodes(model)
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor.size > 1 and tensor.dtype == onnx_ir.DataType.FLOAT and "." in value.name:
            value.const_value = onnx_ir.ExternalTensor(
                "absent.data", None, None, tensor.dtype, shape=tensor.shape, name=value.name, base_dir=""
            )


if __name__ == "__main__":
    main(sys.argv[1])
