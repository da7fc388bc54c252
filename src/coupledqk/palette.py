"""The colours of charts and figures: those of Okabe and Ito, which colour-blind readers can distinguish."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
DARK_COLOURS = ("#56b4e9", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#0072b2", "#ffffff", "#8c8c8c")
"""The corresponding colours on a dark background."""
