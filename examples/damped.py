"""Your own dynamics as a plugin: semi-implicit Euler with friction.

coupledqk train --plugin examples/damped.py --variant damped
coupledqk compare --plugin examples/damped.py --variants damped --corpus my-texts/
"""

import coupledqk


def damped(q, k, dt, force, n_steps):
    """Keys lose a share dt of their length at every step."""
    for _ in range(n_steps):
        k = (1 - dt) * k + dt * force(q)
        q = q + dt * k
    return q, k


coupledqk.register_dynamics("damped", damped)
coupledqk.register_variant("damped", method="damped", n_steps=3)
