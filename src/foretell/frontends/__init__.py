"""frontends: someone's model → Graph; one file a framework."""

from foretell.frontends.request import MODES, Frontend, InputSpec, ModelRequest, parse_inputs
from foretell.frontends.sources import FRONTENDS, convert

__all__ = ["FRONTENDS", "MODES", "Frontend", "InputSpec", "ModelRequest", "convert", "parse_inputs"]
