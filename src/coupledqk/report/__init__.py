"""Reports on run folders and outcomes as pages, tables and charts. Torch-free."""
