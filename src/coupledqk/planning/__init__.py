"""Estimates the requirements of a run before it starts: memory by part, the largest micro-batch, time and GPU-hours."""
