"""pages: numbers → pictures (SVG) and pages (HTML), as text; nothing here computes, asks or writes."""
