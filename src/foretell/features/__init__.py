"""Features: a workload as arrays; the only extractor, for fitting and for serving."""

from foretell.features.units import COLUMNS, SCHEMA, Units, extract_units

__all__ = ["COLUMNS", "SCHEMA", "Units", "extract_units"]
