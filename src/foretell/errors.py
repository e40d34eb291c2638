"""The one error tree. Every error names what we got, what is allowed and what to do.

ForetellError
├─ GraphError (ValueError)            a graph that cannot be: cycles, dangling tensors, impossible shapes
├─ ModelError (ValueError)            a model file or spec that cannot be read
│  ├─ UnsupportedOperatorError        an operator nobody here knows, refused rather than counted as zero
│  └─ UntrustedModelError             reading it would run foreign code; --trust allows it
├─ InputError (ValueError)            --input, --batch-size, --dtype that do not fit the model
├─ DeviceError (ValueError)           an unknown device or an impossible slice
├─ UnknownNameError (KeyError)        a name that no registry has
├─ MissingExtraError (ImportError)    an optional library is absent; names the extra that installs it
├─ MeasurementError (RuntimeError)    a measurement that could not be taken
└─ DataError (RuntimeError)           records at rest that cannot be read, written or understood
"""


class ForetellError(Exception):
    """Base of all errors that foretell raises on purpose."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class GraphError(ForetellError, ValueError):
    """A graph that cannot be: cycles, dangling tensors, impossible shapes."""


class ModelError(ForetellError, ValueError):
    """A model file or specification that cannot be read."""


class UnsupportedOperatorError(ModelError):
    """An operator nobody here knows: refused rather than counted as zero."""


class UntrustedModelError(ModelError):
    """Reading this model would run code that came with it."""


class InputError(ForetellError, ValueError):
    """An input shape, batch size or dtype that does not fit the model."""


class DeviceError(ForetellError, ValueError):
    """An unknown device, or a slice that the device does not have."""


class UnknownNameError(ForetellError, KeyError):
    """A name that a registry does not have."""


class MissingExtraError(ForetellError, ImportError):
    """An optional library is absent; the message names the extra that installs it."""


class MeasurementError(ForetellError, RuntimeError):
    """A measurement that could not be taken."""


class DataError(ForetellError, RuntimeError):
    """Records at rest that cannot be read, written or understood."""
