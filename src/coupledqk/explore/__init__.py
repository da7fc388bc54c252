"""The explorer: one page that shows the attention of one or two runs on any text."""
