"""Training: the one loop, its optimiser, checkpoints and the consumers of its events. It knows no model."""
