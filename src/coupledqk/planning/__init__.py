"""What a run will need, before it is paid for: memory by part, the largest micro-batch, time and GPU-hours."""
