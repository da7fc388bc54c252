"""The laboratory: the paper's experiments and published numbers."""
