"""HTML pages that load nothing from elsewhere."""
