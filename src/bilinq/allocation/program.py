"""Kernels: the numbers of the program, its solution where no server class is full, and the certificate."""

import numpy as np

from bilinq.arrays import Array, BoolArray
from bilinq.jit import bare_kernel, kernel

OVER = 1e-12  # a column may exceed its capacity by this part: rounding
CAPPED = 1e-10  # a row sum this close to its cap, relatively, counts as being at the cap
APART = 1e9  # ratio of a row's longest to its shortest duration above which rounding would decide
TIE = 1e-11  # reduced costs below this part of the row price count as zero


@bare_kernel
def prepare(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, weight: Array, limit: Array,
    eligible: BoolArray, duration: Array, a: Array, c: Array, m: Array, u: Array, f: Array,
) -> bool:  # fmt: skip
    """Fill the numbers of the program; return whether every argument obeys the rules.

    a_i = w_i Q_i / V, costs c_ij = gamma - r_ij (infinite if not eligible), durations m_ij and caps u_i, in units of f_i
    services: f_i is the row's duration if all its eligible pairs have the same one (then m_ij = 1), otherwise a mean.
    `eligible`, `duration` and `m` are empty if every pair is eligible or takes one unit of time.
    """
    bad = 0
    bad += not 0.0 < V < np.inf
    bad += not 1.0 < gamma < np.inf
    masked, timed = eligible.size > 0, duration.size > 0
    for j in range(capacity.size):
        bad += not 0.0 <= capacity[j] < np.inf
    for i in range(queue.size):
        bad += not (0.0 <= queue[i] < np.inf and 0.0 < weight[i] < np.inf and limit[i] >= 0.0)
        a[i] = weight[i] * queue[i] / V
        u[i] = limit[i]
        bad += not a[i] < np.inf
        for j in range(capacity.size):
            cost = gamma - reward[i, j]
            c[i, j] = cost
            if masked and not eligible[i, j]:
                c[i, j] = np.inf
            bad += (cost <= 0.0) | (cost == np.inf) | (cost != cost)
        if timed:
            bad += not rescale(duration[i], i, c, m, u, f)
    return bad == 0


@bare_kernel
def rescale(duration: Array, i: int, c: Array, m: Array, u: Array, f: Array) -> bool:
    """Fill row i's unit f_i, and its costs, durations and cap in that unit; return whether its durations obey the rules."""
    shortest, longest, inverse, many = np.inf, 0.0, 0.0, 0
    for j in range(duration.size):
        if not 0.0 < duration[j] < np.inf:
            return False
        if c[i, j] < np.inf:
            shortest = min(shortest, duration[j])
            longest = max(longest, duration[j])
            inverse += 1.0 / duration[j]
            many += 1
    f[i] = longest if longest == shortest else (many / inverse if many else 1.0)
    u[i] *= f[i]
    for j in range(duration.size):
        c[i, j] /= f[i]
        m[i, j] = duration[j] / f[i] if c[i, j] < np.inf else 1.0
    return not longest > APART * shortest


@bare_kernel
def unsaturated(a: Array, c: Array, m: Array, n: Array, u: Array, y: Array, q: Array, load: Array) -> bool:
    """Try zero prices, Eq. (8): fill y, q and load (J,); return True if no server class is asked for more than it has."""
    timed = m.size > 0
    for j in range(n.size):
        load[j] = 0.0
        q[j] = 0.0
    for i in range(a.size):
        least = np.inf
        for j in range(n.size):
            y[i, j] = 0.0
            if n[j] > 0.0:
                least = min(least, c[i, j])
        if a[i] == 0.0 or u[i] == 0.0 or least == np.inf:
            continue
        tied = 0.0
        for j in range(n.size):
            if c[i, j] <= least * (1.0 + TIE):
                tied += n[j] / m[i, j] if timed else n[j]
        rate = min(a[i] / least, u[i]) / tied
        for j in range(n.size):
            if c[i, j] <= least * (1.0 + TIE):
                load[j] += rate * n[j]
                y[i, j] = rate * n[j] / m[i, j] if timed else rate * n[j]
                if load[j] > n[j] * (1.0 + OVER):
                    return False
    return True


@bare_kernel
def trim(m: Array, n: Array, y: Array, much: float) -> None:
    """Scale columns that exceed their capacity, by the part `much` at most, back to it."""
    timed = m.size > 0
    for j in range(n.size):
        load = 0.0
        for i in range(y.shape[0]):
            load += m[i, j] * y[i, j] if timed else y[i, j]
        if n[j] < load <= n[j] * (1.0 + much):
            for i in range(y.shape[0]):
                y[i, j] *= n[j] / load


@bare_kernel
def price_absent(a: Array, c: Array, m: Array, n: Array, u: Array, q: Array) -> None:
    """Set the price of each class without servers to the lowest at which nobody wants it."""
    timed = m.size > 0
    for j in range(n.size):
        if n[j] > 0.0:
            continue
        q[j] = 0.0
        for i in range(a.size):
            if a[i] > 0.0 and u[i] > 0.0 and c[i, j] < np.inf:
                price = np.inf
                for k in range(n.size):
                    if n[k] > 0.0:
                        price = min(price, c[i, k] + (m[i, k] * q[k] if timed else q[k]))
                q[j] = max(q[j], (price - c[i, j]) / (m[i, j] if timed else 1.0))


@kernel
def certificate(a: Array, c: Array, m: Array, n: Array, u: Array, y: Array, q: Array) -> tuple[float, float]:
    """Return the largest relative violation of the optimality conditions of Eq. (7) by y (I, J) and q (J,), and the gap.

    The duality gap, the value of the dual at q less that of y, tells by how much y may be below the best.
    """
    return certify(a, c, m, n, u, y, q, np.empty(n.size), np.empty(n.size))


@bare_kernel
def certify(
    a: Array, c: Array, m: Array, n: Array, u: Array, y: Array, q: Array, load: Array, cheapest: Array
) -> tuple[float, float]:
    """Do the same as `certificate`, which see; load and cheapest (J,) are overwritten."""
    timed = m.size > 0
    worst, gap = 0.0, 0.0
    for j in range(n.size):
        load[j] = 0.0
        cheapest[j] = np.inf
    for i in range(a.size):
        price, dearest, s = np.inf, 0.0, 0.0
        for j in range(n.size):
            time = m[i, j] if timed else 1.0
            cost = c[i, j] + time * q[j]
            if n[j] > 0.0:
                price = min(price, cost)
            if y[i, j] != 0.0:
                worst = max(worst, -y[i, j])
                dearest = max(dearest, cost)
                s += y[i, j]
                load[j] += time * y[i, j]
                gap += c[i, j] * y[i, j]
        if not s < np.inf:
            return np.inf, np.inf
        if a[i] == 0.0 or u[i] == 0.0 or price == np.inf:
            worst = max(worst, s)
            continue
        value = a[i] / s
        worst = max(worst, s / u[i] - 1.0, dearest / price - 1.0, 1.0 - value / price)
        if s < u[i] * (1.0 - CAPPED):
            worst = max(worst, value / price - 1.0)
        best = min(a[i] / price, u[i])
        gap += a[i] * log_plus((best - s) / s) - price * best
        for j in range(n.size):
            cheapest[j] = min(cheapest[j], c[i, j] / (m[i, j] if timed else 1.0))
    for j in range(n.size):
        if not q[j] >= 0.0 or (n[j] > 0.0 and q[j] == np.inf):
            return np.inf, np.inf
        if n[j] > 0.0:
            idle = 1.0 - load[j] / n[j]
            worst = max(worst, -idle)
            if q[j] > 0.0:
                worst = max(worst, idle * q[j] / (q[j] + (cheapest[j] if cheapest[j] < np.inf else 0.0)))
                gap += n[j] * q[j]
        else:
            worst = max(worst, load[j])
    return worst, max(gap, 0.0)


@bare_kernel
def log_plus(e: float) -> float:
    """Return log(1 + e), by a series where e is nearly zero, as in an answer that is exact."""
    return e * (1.0 - e * (0.5 - e * (1.0 / 3.0))) if -1e-4 < e < 1e-4 else np.log1p(e)
