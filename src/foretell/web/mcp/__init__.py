"""Web: foretell's functions as tools for agents, by the Model Context Protocol."""
