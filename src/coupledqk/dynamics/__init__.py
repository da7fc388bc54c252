"""Dynamics: token-local maps (q, k) -> (q, k), applied before scoring. One small file per method."""

from .affine import affine, affine_inverse
from .evolve import INVERSES, METHODS, evolve
from .forces import FORCES, Force, LinearForce, MLPForce, PotentialForce, ZeroForce
from .implementations import IMPLEMENTATIONS
from .module import AffineDynamics, Dynamics, Static, build_dynamics, set_impl

__all__ = [
    "FORCES",
    "IMPLEMENTATIONS",
    "INVERSES",
    "METHODS",
    "AffineDynamics",
    "Dynamics",
    "Force",
    "LinearForce",
    "MLPForce",
    "PotentialForce",
    "Static",
    "ZeroForce",
    "affine",
    "affine_inverse",
    "build_dynamics",
    "evolve",
    "set_impl",
]
