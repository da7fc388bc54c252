"""Tasks: what is trained."""
