"""Web: a page and a JSON API. A request is parsed, answered by a workflow in a worker process, and rendered."""
