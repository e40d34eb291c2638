"""Web: the page and the JSON API beside it; parse → workflow, in a worker process → render."""
