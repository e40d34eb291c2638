"""Rendering: numbers → text for a terminal, pictures (SVG) and pages (HTML). Nothing here computes or asks."""
