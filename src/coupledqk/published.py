"""Numbers published in the paper (arXiv 2604.01683 v1), as printed there."""

PARAMETERS: dict[str, dict[str, str]] = {
    "tiny": {"standard": "~6M", "hamiltonian": "~6M"},
    "small": {
        "standard": "60,343,296",
        "gqa": "57,197,568",
        "diff": "60,343,360",
        "mlp_only": "60.4M",
        "euler": "60,408,896",
        "hamiltonian": "60,408,896",
    },
    "medium": {"standard": "152.3M", "gqa": "144.4M", "diff": "152.3M", "hamiltonian": "152.4M"},
    "large": {"standard": "~350M", "diff": "~350M", "hamiltonian": "~350M"},
}
"""Parameter counts by preset and variant: tables `params`, `ablation`, `lm_medium`, `lm_large` and `configs`."""


def agrees(count: int, published: str) -> bool:
    """Whether a count rounds to a published figure, at the number of digits printed in the paper."""
    if published.endswith("M"):
        digits = published.strip("~M")
        decimals = len(digits.partition(".")[2])
        return f"{count / 1e6:.{decimals}f}" == digits
    return f"{count:,}" == published


THROUGHPUT: dict[str, dict[str, int]] = {
    "standard": {"forward": 61_070, "training": 22_803, "peak_mb": 4_127},
    "hamiltonian": {"forward": 50_225, "training": 18_650, "peak_mb": 5_855},
    "euler": {"forward": 51_102, "training": 19_014, "peak_mb": 5_712},
    "gqa": {"forward": 62_277, "training": 23_368, "peak_mb": 4_115},
    "diff": {"forward": 50_164, "training": 18_667, "peak_mb": 5_151},
}
"""Throughput in tokens per second (forward, and forward plus backward as "training") and peak memory of the 60M model with
8 × 512 tokens on one RTX 2080 Ti: table `throughput`."""
