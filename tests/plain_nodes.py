"""A second, slow and simple implementation of the nodes' rules, as the equations read, for tests to compare with."""

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.distributed import System
from bilinq.distributed.system import Nodes, Rule


def bracket(system: System, past: Array, r: int, nodes: Nodes, forward: IntArray, backward: IntArray) -> Array:
    """Return 1 - lambda_ij s_i / a_i (I, J) at step r of a history past (steps, I, J) whose delays count steps."""
    a, c, n = (value[0] for value in system.flat[:3])
    found = np.zeros(c.shape)
    for i, j in np.ndindex(*c.shape):
        if not a[i] or not n[j]:
            continue
        heard_z, heard_s = r - backward[i, j], r - forward[i, j]
        loop = forward + backward
        if nodes == "job":
            z = sum(past[heard_z - forward[k, j], k, j] for k in range(len(a)))
            s = sum(past[r - loop[i, k], i, k] for k in range(len(n)))
        else:
            z = sum(past[r - loop[k, j], k, j] for k in range(len(a)))
            s = sum(past[heard_s - backward[i, k], i, k] for k in range(len(n)))
        found[i, j] = 1.0 - (system.penalty.price(np.array([z]), n[[j]])[0] + c[i, j]) * s / a[i]
    return found


def factor(rule: Rule, past: Array, r: int, loop: IntArray, low: float) -> Array:
    """Return the factor that scales a step, (I, J)."""
    i, j = np.indices(loop.shape)
    rate = past[r] if rule == "scaled" else past[r - loop, i, j]
    return np.ones(loop.shape) if rule == "printed" else np.maximum(rate, low)


def steps(system: System, gain: Array, number: int, nodes: Nodes, rule: Rule, start: Array, low: float) -> Array:
    """Return the rates (number + 1, I, J) of the difference equations, Eq. (35) or (36)."""
    forward, backward = (d.astype(np.int64) for d in (system.forward, system.backward))
    before = 2 * int((forward + backward).max()) + 1
    past = np.concatenate([np.repeat(start[None], before + 1, axis=0), np.zeros((number, *start.shape))])
    for r in range(before, before + number):
        step = (
            gain * factor(rule, past, r, forward + backward, low) * bracket(system, past, r, nodes, forward, backward)
        )
        past[r + 1] = np.maximum(past[r] + step, 0.0)
    return past[before:]


def heun(
    system: System, gain: Array, until: float, h: float, nodes: Nodes, rule: Rule, start: Array, low: float
) -> Array:
    """Return the rates every `h` of the differential equations by Heun's method; delays are multiples of h."""
    forward, backward = (np.rint(d / h).astype(np.int64) for d in (system.forward, system.backward))
    before, number = 2 * int((forward + backward).max()) + 1, round(until / h)
    past = np.concatenate([np.repeat(start[None], before + 1, axis=0), np.zeros((number, *start.shape))])

    def change(r: int) -> Array:
        push = bracket(system, past, r, nodes, forward, backward)
        scaled = gain * factor(rule, past, r, forward + backward, low) * push
        return np.where((past[r] > 0.0) | (push > 0.0), scaled, 0.0)

    for r in range(before, before + number):
        first = change(r)
        past[r + 1] = np.maximum(past[r] + h * first, 0.0)
        past[r + 1] = np.maximum(past[r] + 0.5 * h * (first + change(r + 1)), 0.0)
    return past[before:]
