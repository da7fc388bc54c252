"""Your own dynamics as a plugin: semi-implicit Euler with friction.

coupledqk train --plugin examples/damped.py --variant damped
coupledqk compare --plugin examples/damped.py --variants damped --corpus my-texts/
"""

import coupledqk


def damped(q, k, dt, force, n_steps):
    """Semi-implicit Euler with friction: each step shrinks the keys by the factor 1 - dt."""
    for _ in range(n_steps):
        k = (1 - dt) * k + dt * force(q)
        q = q + dt * k
    return q, k


coupledqk.register_dynamics("damped", damped)
coupledqk.register_variant("damped", method="damped", n_steps=3)
