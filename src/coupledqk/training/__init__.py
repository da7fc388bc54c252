"""Training: the training loop, the optimizer, checkpoints and event consumers. It does not depend on any model."""
