"""Features: turns a workload into arrays of numbers. Fitting and serving use this one extractor."""

from foretell.features.units import COLUMNS, SCHEMA, Units, extract_units

__all__ = ["COLUMNS", "SCHEMA", "Units", "extract_units"]
