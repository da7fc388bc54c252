"""Tasks, each of which defines the model and the data of a training run."""
