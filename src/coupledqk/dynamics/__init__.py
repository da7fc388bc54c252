"""Dynamics: token-local maps (q, k) -> (q, k), applied before scoring. One small file per method."""

from .affine import AffineDynamics, affine, affine_inverse
from .evolve import evolve
from .forces import Force, LinearForce, MLPForce, PotentialForce, ZeroForce
from .implementations import IMPLEMENTATIONS
from .method import Method
from .methods import FORCES, METHODS
from .module import Dynamics, build_dynamics, evolve_and_rotate, keeps_only_outputs, set_impl
from .register import register_dynamics
from .static import Static

__all__ = [
    "FORCES",
    "IMPLEMENTATIONS",
    "METHODS",
    "AffineDynamics",
    "Dynamics",
    "Force",
    "LinearForce",
    "MLPForce",
    "Method",
    "PotentialForce",
    "Static",
    "ZeroForce",
    "affine",
    "affine_inverse",
    "build_dynamics",
    "evolve",
    "evolve_and_rotate",
    "keeps_only_outputs",
    "register_dynamics",
    "set_impl",
]
