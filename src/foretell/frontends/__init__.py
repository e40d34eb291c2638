"""Frontends: convert a model of any framework into a `foretell.graph.Graph`."""

from foretell.frontends.request import MODES, Frontend, InputSpec, ModelRequest, parse_inputs
from foretell.frontends.sources import FRONTENDS, convert

__all__ = ["FRONTENDS", "MODES", "Frontend", "InputSpec", "ModelRequest", "convert", "parse_inputs"]
