"""The forward and backward Triton kernels.

Each program keeps some tokens of one key head, their queries, W₁ and W₂ on chip for all steps.

A method is a sequence of blocks with one evaluation of the force each (`Blocks` in triton.py, from the moves of its record):

    DRIFT_FIRST     q ← q + dt · k, then k ← k + dt · f(q) with the old q   Euler
    otherwise       k ← k + dt · f(q), then q ← q + dt · k                  leapfrog, semi-implicit Euler

Only the first and the last block may contain less than a whole kick, and only the last may lack its drift.

With REBUILD the backward kernel starts from the outputs and undoes the blocks one by one. Otherwise it recomputes the input
of each block from the inputs, which takes about n²/2 more evaluations of f; for a few steps, on chip, this is cheaper than
reading stored values. The trajectory is never stored. Each program sums the gradients of the weights and of dt over its
tokens into its own slot, without atomics, so that the result is deterministic.

The G queries of a group are padded to GROUP, a power of two, and the width d to D; padding does not contribute to results.
"""
# Branches on constexpr values are resolved when a kernel is compiled, so that no variable is unbound.
# pyright: reportPossiblyUnboundVariable=false

# pyright: reportArgumentType=false
# Triton converts literals to constexpr when it compiles a kernel.

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, dt_ptr, w1_ptr, w2_ptr, new_q_ptr, new_k_ptr,
    n_tokens, n_blocks, q_token, q_head, k_token, k_head, new_q_token, new_k_token,
    DRIFT_FIRST: tl.constexpr, FIRST_KICK: tl.constexpr, LAST_KICK: tl.constexpr, LAST_DRIFT: tl.constexpr,
    TOKENS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, d: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0) * TOKENS, tl.program_id(1)
    dt = tl.load(dt_ptr + head)
    w1, w2 = load_matrix(w1_ptr, d, D), load_matrix(w2_ptr, d, D)

    q_at, q_mask = tile(q_ptr, first, head, n_tokens, q_token, q_head, TOKENS, G, GROUP, d, D)
    k_at, k_mask = tile(k_ptr, first, head, n_tokens, k_token, k_head, TOKENS, 1, 1, d, D)
    q = tl.load(q_at, q_mask, 0.0).to(tl.float32)
    k = tl.load(k_at, k_mask, 0.0).to(tl.float32)
    for block in range(n_blocks):
        kick, drift = shares(block, n_blocks, FIRST_KICK, LAST_KICK, LAST_DRIFT)
        q, k = advance(q, k, dt, w1, w2, kick, drift, DRIFT_FIRST, TOKENS, G, GROUP, D)

    q_at, _ = tile(new_q_ptr, first, head, n_tokens, new_q_token, d, TOKENS, G, GROUP, d, D)
    k_at, _ = tile(new_k_ptr, first, head, n_tokens, new_k_token, d, TOKENS, 1, 1, d, D)
    tl.store(q_at, q, q_mask)
    tl.store(k_at, k, k_mask)


@triton.jit
def backward_kernel(
    grad_q_ptr, grad_k_ptr, q_ptr, k_ptr, dt_ptr, w1_ptr, w2_ptr,
    new_q_ptr, new_k_ptr, dt_slots_ptr, w1_slots_ptr, w2_slots_ptr,
    n_tokens, n_blocks, grad_q_token, grad_q_head, grad_k_token, grad_k_head,
    q_token, q_head, k_token, k_head, new_q_token, new_k_token,
    DRIFT_FIRST: tl.constexpr, FIRST_KICK: tl.constexpr, LAST_KICK: tl.constexpr, LAST_DRIFT: tl.constexpr,
    TOKENS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, d: tl.constexpr, D: tl.constexpr, REBUILD: tl.constexpr,
):  # fmt: skip
    slot, head = tl.program_id(0), tl.program_id(1)
    dt = tl.load(dt_ptr + head)
    w1, w2 = load_matrix(w1_ptr, d, D), load_matrix(w2_ptr, d, D)
    grad_dt = tl.zeros((TOKENS,), tl.float32)
    grad_w1, grad_w2 = tl.zeros((D, D), tl.float32), tl.zeros((D, D), tl.float32)

    for first in range(slot * TOKENS, n_tokens, tl.num_programs(0) * TOKENS):
        q_at, q_mask = tile(q_ptr, first, head, n_tokens, q_token, q_head, TOKENS, G, GROUP, d, D)
        k_at, k_mask = tile(k_ptr, first, head, n_tokens, k_token, k_head, TOKENS, 1, 1, d, D)
        grad_q_at, _ = tile(grad_q_ptr, first, head, n_tokens, grad_q_token, grad_q_head, TOKENS, G, GROUP, d, D)
        grad_k_at, _ = tile(grad_k_ptr, first, head, n_tokens, grad_k_token, grad_k_head, TOKENS, 1, 1, d, D)
        grad_q = tl.load(grad_q_at, q_mask, 0.0).to(tl.float32)
        grad_k = tl.load(grad_k_at, k_mask, 0.0).to(tl.float32)

        if REBUILD:
            q = tl.load(q_at, q_mask, 0.0).to(tl.float32)
            k = tl.load(k_at, k_mask, 0.0).to(tl.float32)
        for undone in range(n_blocks):
            block = n_blocks - 1 - undone
            kick, drift = shares(block, n_blocks, FIRST_KICK, LAST_KICK, LAST_DRIFT)
            if REBUILD:
                q -= drift * dt * spread_groups(k, TOKENS, GROUP, D)
            else:
                q = tl.load(q_at, q_mask, 0.0).to(tl.float32)
                k = tl.load(k_at, k_mask, 0.0).to(tl.float32)
                for before in range(block):
                    earlier_kick, earlier_drift = shares(before, n_blocks, FIRST_KICK, LAST_KICK, LAST_DRIFT)
                    q, k = advance(q, k, dt, w1, w2, earlier_kick, earlier_drift, DRIFT_FIRST, TOKENS, G, GROUP, D)

            h, slope = hidden(q, w1, TOKENS, G, GROUP)
            h = sum_groups(h, TOKENS, GROUP, D)
            force = times(h, tl.trans(w2), w2.dtype) / G
            pull = drift * sum_groups(grad_q, TOKENS, GROUP, D)
            if DRIFT_FIRST:
                grad_dt += tl.sum(pull * k + kick * grad_k * force, axis=1)
                grad_force = kick * dt / G * grad_k
                grad_k += dt * pull
            else:
                grad_k += dt * pull
                if REBUILD:
                    grad_dt += tl.sum(pull * k + kick * grad_k * force, axis=1)
                    k -= kick * dt * force
                else:
                    grad_dt += tl.sum(pull * (k + kick * dt * force) + kick * grad_k * force, axis=1)
                grad_force = kick * dt / G * grad_k

            grad_w2 += times(tl.trans(grad_force), h, w2.dtype)
            grad_a = slope * spread_groups(times(grad_force, w2, w2.dtype), TOKENS, GROUP, D)
            grad_w1 += times(tl.trans(grad_a), q, w1.dtype)
            grad_q += times(grad_a, w1, w1.dtype)

        q_at, _ = tile(new_q_ptr, first, head, n_tokens, new_q_token, d, TOKENS, G, GROUP, d, D)
        k_at, _ = tile(new_k_ptr, first, head, n_tokens, new_k_token, d, TOKENS, 1, 1, d, D)
        tl.store(q_at, grad_q, q_mask)
        tl.store(k_at, grad_k, k_mask)

    slot = slot * tl.num_programs(1) + head
    tl.store(dt_slots_ptr + slot, tl.sum(grad_dt))
    store_matrix(w1_slots_ptr + slot * d * d, grad_w1, d, D)
    store_matrix(w2_slots_ptr + slot * d * d, grad_w2, d, D)


@triton.jit
def advance(
    q, k, dt, w1, w2, kick, drift,
    DRIFT_FIRST: tl.constexpr, TOKENS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    h, _ = hidden(q, w1, TOKENS, G, GROUP)
    h = sum_groups(h, TOKENS, GROUP, D)
    push = kick * dt / G * times(h, tl.trans(w2), w2.dtype)
    if DRIFT_FIRST:
        q += drift * dt * spread_groups(k, TOKENS, GROUP, D)
        k += push
    else:
        k += push
        q += drift * dt * spread_groups(k, TOKENS, GROUP, D)
    return q, k


@triton.jit
def shares(block, n_blocks, FIRST_KICK: tl.constexpr, LAST_KICK: tl.constexpr, LAST_DRIFT: tl.constexpr):
    """The fractions of a whole kick and of a whole drift that a block contains."""
    last = block == n_blocks - 1
    kick = tl.where(block == 0, FIRST_KICK, tl.where(last, LAST_KICK, 1.0))
    return kick, tl.where(last, LAST_DRIFT, 1.0)


@triton.jit
def hidden(q, w1, TOKENS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr):
    """silu(W₁ q) and its slope."""
    a = times(q, tl.trans(w1), w1.dtype)
    s = tl.sigmoid(a)
    if GROUP != G:  # padded queries drift like the others but must exert no force
        s = tl.where((tl.arange(0, TOKENS * GROUP) % GROUP < G)[:, None], s, 0.0)
    h = a * s
    return h, s + h * (1.0 - s)


@triton.jit
def times(x, y, dtype: tl.constexpr):
    """The product in the precision of q and k, summed in float32."""
    return tl.dot(x.to(dtype), y.to(dtype), input_precision="ieee")


@triton.jit
def sum_groups(x, TOKENS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr):
    if GROUP == 1:
        return x
    return tl.sum(tl.reshape(x, (TOKENS, GROUP, D)), axis=1)


@triton.jit
def spread_groups(x, TOKENS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr):
    if GROUP == 1:
        return x
    return tl.reshape(tl.broadcast_to(x[:, None, :], (TOKENS, GROUP, D)), (TOKENS * GROUP, D))


@triton.jit
def tile(
    ptr, first, head, n_tokens, token_stride, head_stride,
    TOKENS: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, d: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Pointers and mask of a (TOKENS · GROUP, D) tile: the queries of `TOKENS` tokens in a group, or with G = 1 their keys."""
    row, column = tl.arange(0, TOKENS * GROUP), tl.arange(0, D)
    token, member = first + row // GROUP, row % GROUP
    start = token.to(tl.int64) * token_stride + (head * G + member) * head_stride
    mask = ((token < n_tokens) & (member < G))[:, None] & (column < d)[None, :]
    return ptr + start[:, None] + column[None, :], mask


@triton.jit
def load_matrix(ptr, d: tl.constexpr, D: tl.constexpr):
    i = tl.arange(0, D)
    return tl.load(ptr + i[:, None] * d + i[None, :], (i < d)[:, None] & (i < d)[None, :], 0.0)


@triton.jit
def store_matrix(ptr, x, d: tl.constexpr, D: tl.constexpr):
    i = tl.arange(0, D)
    tl.store(ptr + i[:, None] * d + i[None, :], x, (i < d)[:, None] & (i < d)[None, :])
