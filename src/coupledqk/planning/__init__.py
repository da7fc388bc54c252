"""Estimates of what a run needs before it starts: memory by part, the largest micro-batch, time and GPU-hours."""
