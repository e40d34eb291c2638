"""Front-end for Hugging Face configurations: no weights, no download of a model."""
