"""Speed and memory of our variants, against each other, against the arithmetic and against peers, in one run."""
