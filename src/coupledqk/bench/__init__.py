"""Benchmarks of speed and memory: attention variants, matmul-bound estimates and peers in the same run."""
