"""Run folders in, pages out. Torch-free."""
