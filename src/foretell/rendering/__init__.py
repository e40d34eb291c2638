"""Rendering: results as text for a terminal, pictures (SVG) and pages (HTML). Nothing here predicts or reads models."""
