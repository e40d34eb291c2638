"""The intermediate representation: tensors, nodes, graphs, passes over them, and their files."""
