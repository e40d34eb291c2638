"""Errors: all errors that foretell raises on purpose. A message says what was given, what is allowed and what to do.

ForetellError
├─ GraphError (ValueError)            an inconsistent graph: cycles, dangling tensors, impossible shapes
├─ ModelError (ValueError)            a model file or specification that cannot be read
│  ├─ UnsupportedOperatorError        an unknown operator, which is refused rather than counted as zero
│  └─ UntrustedModelError             reading the model would run its code; --trust allows that
├─ InputError (ValueError)            an --input, --batch-size or --dtype that does not fit the model
├─ DeviceError (ValueError)           an unknown device, or a slice that the device does not have
├─ UnknownNameError (KeyError)        a name that a registry does not have
├─ MissingExtraError (ImportError)    an optional library is missing; the message says how to install it
├─ MeasurementError (RuntimeError)    a measurement that could not be taken
└─ DataError (RuntimeError)           stored records or data files that cannot be read or written
"""


class ForetellError(Exception):
    """The base class of all errors that foretell raises on purpose."""

    def __str__(self) -> str:
        # KeyError, a base of UnknownNameError, would show the repr of its message
        text = str(self.args[0]) if self.args else type(self).__name__
        # a file may put half a character into a message, which no terminal or server could write
        return text.encode(errors="backslashreplace").decode()


class GraphError(ForetellError, ValueError):
    """The graph is inconsistent: it has cycles, dangling tensors or impossible shapes."""


class ModelError(ForetellError, ValueError):
    """The model file or specification cannot be read."""


class UnsupportedOperatorError(ModelError):
    """The model has an unknown operator, which is refused rather than counted as zero."""


class UntrustedModelError(ModelError):
    """Reading this model would run code that came with it."""


class InputError(ForetellError, ValueError):
    """An input shape, a batch size or a dtype does not fit the model."""


class DeviceError(ForetellError, ValueError):
    """The device is unknown, or it does not have the slice."""


class UnknownNameError(ForetellError, KeyError):
    """A registry does not have the name."""


class MissingExtraError(ForetellError, ImportError):
    """An optional library is missing; the message says how to install it."""


class MeasurementError(ForetellError, RuntimeError):
    """A measurement could not be taken."""


class DataError(ForetellError, RuntimeError):
    """Stored records or data files cannot be read or written."""
