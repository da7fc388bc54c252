"""The explorer: one page on which anyone can look at the attention of one or two runs on a text of their own."""
