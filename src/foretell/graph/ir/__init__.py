"""Graph: the intermediate representation: tensors, nodes and graphs, the passes over them, and their file format."""
