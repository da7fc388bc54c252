"""Runs: training one into its folder, and opening a trained one."""
