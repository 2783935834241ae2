"""The solver: interior point steps, then exact prices from the used pairs, with the residual of the answer."""

import numpy as np

from bilinq.allocation.exact import exact_prices, guess, marks, recall, revise, room
from bilinq.allocation.interior import FLOW, PRICE, RAW, SERVED, TRUE_A, A, C, N, Q, U, advance, start_cold, start_warm
from bilinq.allocation.packing import FEW, pack, take_in, thin, widen
from bilinq.allocation.split import OVER, split
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel

CAPPED = 1e-10
"""A row sum this close to its cap, relatively, counts as being at the cap."""


@kernel
def residual(a: Array, c: Array, n: Array, u: Array, y: Array, q: Array) -> float:
    """Return the largest relative violation of the optimality conditions of Eq. (7) by y (I, J) and q (J,)."""
    worst = 0.0
    load = np.zeros(n.size)
    cheapest = np.full(n.size, np.inf)
    for i in range(a.size):
        s = 0.0
        for j in range(n.size):
            s += y[i, j]
            worst = max(worst, -y[i, j])
            load[j] += y[i, j]
        if not s < np.inf:
            return np.inf
        if a[i] == 0.0 or u[i] == 0.0:
            worst = max(worst, s)
            continue
        worst = max(worst, s / u[i] - 1.0, row_violation(a[i], c[i], n, u[i], s, y[i], q))
        for j in range(n.size):
            cheapest[j] = min(cheapest[j], c[i, j])
    for j in range(n.size):
        if not q[j] >= 0.0 or (n[j] > 0.0 and q[j] == np.inf):
            return np.inf
        if n[j] > 0.0:
            idle = 1.0 - load[j] / n[j]
            worst = max(worst, -idle)
            if q[j] > 0.0:
                worst = max(worst, idle * q[j] / (q[j] + cheapest[j]))
        else:
            worst = max(worst, load[j])
    return worst


@kernel
def row_violation(a: float, c: Array, n: Array, u: float, s: float, y: Array, q: Array) -> float:
    """Return how far one row is from buying only at its lowest price and from valuing it at that price."""
    price = np.inf
    for j in range(n.size):
        if n[j] > 0.0:
            price = min(price, q[j] + c[j])
    if price == np.inf:
        return s
    value = a / s
    worst = value / price - 1.0
    if s >= u * (1.0 - CAPPED):
        worst = 0.0
    worst = max(worst, 1.0 - value / price)
    for j in range(n.size):
        if y[j] > 0.0:
            worst = max(worst, (q[j] + c[j]) / price - 1.0)
    return worst


POLISH_FROM, EAGER_FROM = 1e-4, 1.2e-2
"""Relative gaps from which the used pairs are worth guessing, in large and in small programs."""
CLEAR = 1e-7
"""Relative gap below which a guess is always worth trying."""
SMALL = 500
"""Number of pairs up to which it is always worth trying, too."""
LATE, ENOUGH = 1e-10, 1e-9
"""From this relative gap on, this residual will do: the extremes of floating point rarely give a better one."""
TAKE_IN_FROM = 1e-2
"""Gap, relative to the costs, from which prices are good enough to look for further pairs."""
COLD_PAIRS, WARM_PAIRS = 12, 4
"""Pairs of each row to begin with in large programs, from nothing and from good prices."""
WARM_STEPS = 10
"""Steps after which a warm start was none, and the search begins anew."""
WARM_GAP = 3e-4
"""Relative gap at which a warm start begins."""
TIE = 1e-11
"""Reduced costs below this part of the row price count as zero."""
COARSE_TIE = 3e-10
"""What counts as zero where prices are so high that the finer rule is lost in rounding."""
REPAIRS, EAGER_REPAIRS = 6, 2
"""How often a guessed support is mended where its flows or prices contradict it."""
MENDABLE = 8
"""Contradictions up to which mending is worth trying."""
STEPS = 100
"""Interior point steps before giving up; eight to twenty-five are usual."""
JAM = 10
"""Steps in which the gap must halve where pairs were left out; otherwise those that were taken are in the way."""


@kernel
def solve_one(
    a: Array, c: Array, n: Array, u: Array, y_last: Array, q_last: Array, tol: float, y: Array, q: Array
) -> tuple[int, float]:
    """Fill y (I, J) and prices q (J,) of a program; return the steps it took and the certificate.

    `y_last` and `q_last` hold a nearby solution to start from; the start is cold where they have length zero or prices
    are not finite.
    """
    steps = 0
    if unsaturated(a, c, n, u, y, q):
        trim(n, y)
        r = residual(a, c, n, u, y, q)
    else:
        steps, r = saturated(a, c, n, u, y_last, q_last, tol, y, q)
    price_absent(a, c, n, u, q)
    return steps, r


@kernel
def unsaturated(a: Array, c: Array, n: Array, u: Array, y: Array, q: Array) -> bool:
    """Try zero prices, Eq. (8): fill y and q and return True if no server class is asked for more than it has."""
    load = np.zeros(n.size)
    q[:] = 0.0
    for i in range(a.size):
        least = np.inf
        for j in range(n.size):
            y[i, j] = 0.0
            if n[j] > 0.0:
                least = min(least, c[i, j])
        if a[i] == 0.0 or u[i] == 0.0:
            continue
        tied = 0.0
        for j in range(n.size):
            if c[i, j] <= least * (1.0 + TIE):
                tied += n[j]
        if tied == 0.0:
            return False
        rate = min(a[i] / least, u[i]) / tied
        for j in range(n.size):
            if c[i, j] <= least * (1.0 + TIE):
                y[i, j] = rate * n[j]
                load[j] += y[i, j]
                if load[j] > n[j] * (1.0 + OVER):
                    return False
    return True


@kernel
def saturated(
    a: Array, c: Array, n: Array, u: Array, y_last: Array, q_last: Array, tol: float, y: Array, q: Array
) -> tuple[int, float]:
    """Solve where prices matter: leave out empty rows and columns, search, put the answer back.

    The search starts from the last solution if there is one, then with the cheapest pairs, then with every pair for the
    first steps, then with every pair for all steps, until an answer certifies. Small programs skip what lies between.
    Returns the steps and the certificate; what was left out has no allocation and obeys every condition.
    """
    rows = np.empty(a.size, np.int64)
    columns = np.empty(n.size, np.int64)
    n_rows = 0
    n_columns = 0
    for i in range(a.size):
        rows[n_rows] = i
        n_rows += a[i] > 0.0 and u[i] > 0.0
    for j in range(n.size):
        columns[n_columns] = j
        n_columns += n[j] > 0.0
    y[:, :] = 0.0
    q[:] = np.inf
    if n_columns == 0:
        return 0, 0.0
    row = np.zeros((18, n_rows))
    col = np.zeros((12, n_columns))
    dense = np.empty((n_rows, n_columns))
    start = np.empty(n_columns)
    usable = q_last.size > 0
    for j in range(n_columns):
        col[N, j] = n[columns[j]]
        start[j] = q_last[columns[j]] if usable else np.nan
        usable = usable and 0.0 <= start[j] < np.inf
    for i in range(n_rows):
        row[A, i] = a[rows[i]]
        row[TRUE_A, i] = a[rows[i]]
        row[U, i] = u[rows[i]]
        for j in range(n_columns):
            dense[i, j] = c[rows[i], columns[j]]
    found = np.zeros((n_rows, n_columns))
    for i in range(n_rows):
        for j in range(n_columns):
            found[i, j] = y_last[rows[i], columns[j]] if usable else 0.0
    prices = np.empty(n_columns)
    tame(row, col, dense)
    few = n_columns <= FEW or n_rows < n_columns
    steps = 0
    r = np.inf
    for attempt in range(0 if usable else 1, 2 if few else 4):
        if attempt == 1:
            start[0] = np.nan
        more, r = search(row, col, dense, start, few or attempt >= 2, attempt == 2, tol, found, prices)
        steps += more
        if r <= ENOUGH:
            break
    for j in range(n_columns):
        q[columns[j]] = prices[j]
        for i in range(n_rows):
            y[rows[i], columns[j]] = found[i, j]
    return steps, r


@kernel
def tame(row: Array, col: Array, c: Array) -> None:
    """Lower each a_i that is far above what fills its cap at any likely price: beyond that it only costs precision."""
    if row[U].min() == np.inf:
        return
    capacity = 0.0
    dearest = 0.0
    for j in range(col.shape[1]):
        capacity += col[N, j]
        for i in range(row.shape[1]):
            dearest = max(dearest, c[i, j])
    low = 0.0
    high = 0.0
    for i in range(row.shape[1]):
        high += row[A, i] / capacity
    for _ in range(40):
        level = 0.5 * (low + high)
        demand = 0.0
        for i in range(row.shape[1]):
            demand += min(row[U, i], row[A, i] / level)
        if demand > capacity:
            low = level
        else:
            high = level
    for i in range(row.shape[1]):
        row[A, i] = min(row[A, i], 10.0 * (high + dearest) * row[U, i])


@kernel
def search(
    row: Array, col: Array, c: Array, warm: Array, every: bool, thinning: bool, tol: float, y: Array, q: Array
) -> tuple[int, float]:
    """Fill y (I, J) and q (J,): interior point steps until the guessed support certifies; return how many, and how well.

    The steps see row[A], a as `tame` leaves it, and all pairs at once with `every`, until most are ruled out with
    `thinning`; the certificate sees row[TRUE_A] and all pairs. When prices call for more further pairs at once than an
    optimum can use, or steps hardly get on, the search had the wrong ones, and is given up.
    """
    columns = q.size
    member = np.zeros(c.shape, np.bool_)
    cold = np.isnan(warm[0])
    for j in range(columns):
        q[j] = 0.0 if cold else warm[j]
    some = COLD_PAIRS if cold else WARM_PAIRS
    pair, cols, width = pack(c, q, columns if every else some, member)
    order = min(width.size, columns) if every else columns
    schur = np.empty((order, order))
    mark = marks(*cols.shape)
    flag, number = room(width.size, columns)
    r = np.inf
    if cold:
        start_cold(pair, row, col, cols, width)
    else:
        start_warm(pair, row, col, cols, width, y, warm, WARM_GAP)
        recall(pair, cols, width, y, warm, mark, flag)
        col[RAW, :] = warm
        r = mend(pair, row, col, cols, width, c, mark, flag, number, POLISH_FROM, MENDABLE, y, q)
        if r <= tol:
            return 0, r
    look = 0.0 if every else first_look(pair, row, col, width)
    some_left_out = thinning or not every
    halved = 0
    half = np.inf
    for k in range(STEPS if cold else WARM_STEPS):
        mu = advance(pair, row, col, cols, width, every, schur)
        if mu <= half:
            half = 0.5 * mu
            halved = k
        if some_left_out and k - halved > JAM:
            return k + 1, np.inf
        if mu < (EAGER_FROM if cols.size <= SMALL else POLISH_FROM):
            r = polish(pair, row, col, cols, width, c, mark, flag, number, mu, y, q)
            if r <= tol or (r <= ENOUGH and mu < LATE) or not mu > 1e-22:
                return k + 1, r
        if thinning and thin(pair, col, cols, width, member):
            every = thinning = False
            look = 0.1 * mu
        elif not every and (mu < look or tol < r < np.inf):
            look = min(look, 0.1 * mu)
            before = width.sum()
            while take_in(pair, row, col, cols, width, c, member, mu) > 0:
                pair, cols = widen(pair, cols, columns)
                mark = marks(*cols.shape)
            if width.sum() - before > width.size + columns:
                return k + 1, np.inf
    return STEPS if cold else WARM_STEPS, r


@kernel
def first_look(pair: Array, row: Array, col: Array, width: IntArray) -> float:
    """Return the relative gap at which prices are accurate compared to the costs, also where they are far above these."""
    level = row[A].sum() / col[N].sum()
    return float(TAKE_IN_FROM * min(1.0, pair[C].sum() / (width.sum() * level)))


@kernel
def polish(
    pair: Array,
    row: Array,
    col: Array,
    cols: IntArray,
    width: IntArray,
    c: Array,
    mark: BoolArray,
    flag: BoolArray,
    number: IntArray,
    mu: float,
    y: Array,
    q: Array,
) -> float:
    """Fill y (I, J) and q with the exact solution on the support that the point suggests; return its certificate.

    A support that is no forest while the gap `mu` is wide is taken for unclear, and not worth the work if it is large.
    Later, ties may be the reason; exchanging one pair for another seldom mends those, so prices must be right at once.
    """
    surplus = guess(pair, row, col, cols, width, mark, flag) - width.size - q.size
    tangled = surplus > 0 and cols.size > SMALL
    if tangled and mu > CLEAR:
        return np.inf
    col[RAW, :] = col[Q]
    bearable = 0 if tangled and mu > LATE else MENDABLE
    return mend(pair, row, col, cols, width, c, mark, flag, number, mu, bearable, y, q)


@kernel
def mend(
    pair: Array,
    row: Array,
    col: Array,
    cols: IntArray,
    width: IntArray,
    c: Array,
    mark: BoolArray,
    flag: BoolArray,
    number: IntArray,
    mu: float,
    bearable: int,
    y: Array,
    q: Array,
) -> float:
    """Fill y (I, J) and q from a guessed support and rough prices col[RAW], mended where it contradicts itself.

    Returns the certificate, or infinity if the guess cannot be mended or more than `bearable` rows would rather buy
    elsewhere, which shows before the flows are known.
    """
    for _ in range(REPAIRS if mu <= POLISH_FROM else EAGER_REPAIRS):
        exact_prices(pair, row, col, cols, width, mark, flag, number)
        for j in range(q.size):
            q[j] = max(col[RAW, j], 0.0)
        overpaid = 0
        for i in range(width.size):
            least = np.inf
            for k in range(width[i]):
                least = min(least, q[cols[i, k]] + pair[C, i, k])
            row[SERVED, i] = min(row[TRUE_A, i] / least, row[U, i])
            overpaid += least < row[PRICE, i] * (1.0 - COARSE_TIE)
        if overpaid > bearable:
            return np.inf
        split(pair, row, col, cols, width, q, TIE, mark, flag, number)
        contradictions = revise(pair, row, col, cols, width, mark, flag, TIE)
        if contradictions == 0:
            return unpack(c, pair, row, col, cols, width, q, y)
        if contradictions > MENDABLE:
            break
    if mu > CLEAR:
        return np.inf
    split(pair, row, col, cols, width, q, COARSE_TIE, mark, flag, number)
    return unpack(c, pair, row, col, cols, width, q, y)


@kernel
def unpack(c: Array, pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, q: Array, y: Array) -> float:
    """Fill y (I, J) from packed pairs; return its certificate."""
    for i in range(width.size):
        for j in range(q.size):
            y[i, j] = 0.0
        for k in range(width[i]):
            y[i, cols[i, k]] = max(pair[FLOW, i, k], 0.0)
    trim(col[N], y)
    return residual(row[TRUE_A], c, col[N], row[U], y, q)


@kernel
def trim(n: Array, y: Array) -> None:
    """Scale columns that exceed their capacity by rounding back to it."""
    for j in range(n.size):
        load = 0.0
        for i in range(y.shape[0]):
            load += y[i, j]
        if n[j] < load <= n[j] * (1.0 + 2.0 * OVER):
            for i in range(y.shape[0]):
                y[i, j] *= n[j] / load


@kernel
def price_absent(a: Array, c: Array, n: Array, u: Array, q: Array) -> None:
    """Give a class without servers the lowest price at which nobody wants it."""
    for j in range(n.size):
        if n[j] > 0.0:
            continue
        q[j] = 0.0
        for i in range(a.size):
            if a[i] > 0.0 and u[i] > 0.0:
                price = np.inf
                for k in range(n.size):
                    if n[k] > 0.0:
                        price = min(price, q[k] + c[i, k])
                q[j] = max(q[j], price - c[i, j])
