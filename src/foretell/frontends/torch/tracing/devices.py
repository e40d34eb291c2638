"""Frontends: lets models be traced that make tensors without a device in their forward pass.

``torch.arange(n)`` makes a tensor on the CPU, and the trace runs on the meta device, as it would on a GPU: the two do
not mix. A second trace, with the meta device as the default, makes such tensors where the model is.
"""

NOTE = (
    "The forward pass makes tensors without a device (such as torch.arange(n)). They are counted on the device of the "
    "model; to run there, write torch.arange(n, device=x.device) or call torch.set_default_device."
)
_SIGNS = ("on the same device", "on the expected device", "FakeTensor Device Propagation", "device mismatch")


def devices_differ(error: Exception) -> bool:
    """Whether an export failed because tensors of two devices met.

    >>> devices_differ(RuntimeError("Expected all tensors to be on the same device, but found meta and cpu!"))
    True
    """
    return any(sign in str(error) for sign in _SIGNS)
