"""Kernels: the solver. Interior point steps, then exact prices from the used pairs, then the certificate."""

import numpy as np

from bilinq.allocation.exact import exact_prices, guess, recall, revise
from bilinq.allocation.interior import FLOW, PRICE, RAW, SERVED, TRUE_A, A, C, N, Q, U, advance, start_cold, start_warm
from bilinq.allocation.packing import FEW, pack, take_in, thin, widen
from bilinq.allocation.program import TIE, marks, prepare, price_absent, residual, room, trim, unsaturated
from bilinq.allocation.split import split
from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.jit import kernel

BAD = -1  # returned instead of a number of steps where an argument breaks the rules
POLISH_FROM, EAGER_FROM = 1e-4, 1.2e-2
"""Relative gaps from which the used pairs are worth guessing, in large and in small programs."""
CLEAR = 1e-7  # relative gap below which a guess is always worth trying
SMALL = 500  # number of pairs up to which a guess is always worth trying, whatever the gap
LATE, ENOUGH = 1e-10, 1e-9  # below this relative gap this residual is accepted: rounding rarely allows a better one
TAKE_IN_FROM = 1e-2  # gap, relative to the costs, below which prices are good enough to add further pairs
COLD_PAIRS, WARM_PAIRS = 12, 4
"""Pairs of each row at the start of a large program: from a cold start, and from good prices."""
WARM_STEPS = 10  # steps after which a warm start has failed; the search then starts cold
WARM_GAP = 3e-4  # relative gap at which a warm start begins
COARSE_TIE = 3e-10  # replaces `TIE` where prices are so high that `TIE` is below rounding
REPAIRS, EAGER_REPAIRS = 6, 2  # how often a guessed support is repaired where its flows or prices contradict it
REPAIRABLE = 8  # contradictions up to which a repair is worth trying
STEPS = 100  # interior point steps before giving up; eight to twenty-five are usual
JAM = 10  # steps in which the gap must halve where pairs were left out; otherwise the chosen pairs are the wrong ones


@kernel
def solve_batch(
    queue: Array, reward: Array, capacity: Array, V: Array, gamma: Array, weight: Array, limit: Array,
    y_last: Array, q_last: Array, tol: float, y: Array, q: Array, r: Array,
) -> int:  # fmt: skip
    """Fill y (B, I, J), q (B, J) and certificates r (B,) of a batch; return the steps it took, or `BAD`."""
    a = np.empty(queue.shape)
    c = np.empty(reward.shape)
    for b in range(queue.shape[0]):
        if not prepare(queue[b], reward[b], capacity[b], V[b], gamma[b], weight[b], limit[b], a[b], c[b]):
            return BAD
    nothing, no_price = np.empty((0, 0)), np.empty(0)
    cold = q_last.shape[0] == 0
    steps = 0
    for b in range(queue.shape[0]):
        y_near, q_near = (nothing, no_price) if cold else (y_last[b], q_last[b])
        more, r[b] = solve_one(a[b], c[b], capacity[b], limit[b], y_near, q_near, tol, y[b], q[b])
        steps += more
    return steps


@kernel
def solve_plain(
    queue: Array, reward: Array, capacity: Array, V: float, gamma: float, tol: float
) -> tuple[Array, Array, float, int]:
    """Return y, q, certificate and steps (or `BAD`) of one program without weights, caps or a start."""
    rows, columns = reward.shape
    y, q = np.empty((rows, columns)), np.empty(columns)
    if not rows or not columns or queue.size != rows or capacity.size != columns:
        return y, q, np.inf, BAD
    a, u = np.empty(rows), np.full(rows, np.inf)
    c = np.empty((rows, columns))
    if not prepare(queue, reward, capacity, V, gamma, np.ones(rows), u, a, c):
        return y, q, np.inf, BAD
    steps, r = solve_one(a, c, capacity, u, np.empty((0, 0)), np.empty(0), tol, y, q)
    return y, q, r, steps


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
def saturated(
    a: Array, c: Array, n: Array, u: Array, y_last: Array, q_last: Array, tol: float, y: Array, q: Array
) -> tuple[int, float]:
    """Solve where prices matter: leave out empty rows and columns, search, and copy the answer to y and q.

    The search starts from the last solution if there is one, then with the cheapest pairs, then with every pair for the
    first steps, then with every pair for all steps, until an answer certifies. Small programs use every pair from the start.
    Returns the steps and the certificate. Rows and columns that were left out get nothing and obey every condition.
    """
    rows, columns = np.flatnonzero((a > 0.0) & (u > 0.0)), np.flatnonzero(n > 0.0)
    n_rows, n_columns = rows.size, columns.size
    y[:, :] = 0.0
    q[:] = np.inf
    if n_columns == 0:
        return 0, 0.0
    row, col, dense = compact(a, c, n, u, rows, columns)
    found, start = compact_start(y_last, q_last, rows, columns)
    prices = np.empty(n_columns)
    tame(row, col, dense)
    few = n_columns <= FEW or n_rows < n_columns
    steps = 0
    r = np.inf
    for attempt in range(1 if np.isnan(start[0]) else 0, 2 if few else 4):
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
def compact(a: Array, c: Array, n: Array, u: Array, rows: IntArray, columns: IntArray) -> tuple[Array, Array, Array]:
    """Return `row`, `col` and the costs of the program with the given rows and columns only."""
    row = np.zeros((18, rows.size))
    col = np.zeros((12, columns.size))
    cost = np.empty((rows.size, columns.size))
    for j in range(columns.size):
        col[N, j] = n[columns[j]]
    for i in range(rows.size):
        row[A, i] = a[rows[i]]
        row[TRUE_A, i] = a[rows[i]]
        row[U, i] = u[rows[i]]
        for j in range(columns.size):
            cost[i, j] = c[rows[i], columns[j]]
    return row, col, cost


@kernel
def compact_start(y_last: Array, q_last: Array, rows: IntArray, columns: IntArray) -> tuple[Array, Array]:
    """Return allocation and prices to start from, in the given rows and columns; the first price is NaN for a cold start."""
    y = np.zeros((rows.size, columns.size))
    q = np.full(columns.size, np.nan)
    if q_last.size == 0:
        return y, q
    for j in range(columns.size):
        q[j] = q_last[columns[j]]
        if not 0.0 <= q[j] < np.inf:
            q[0] = np.nan
            return y, q
    for i in range(rows.size):
        for j in range(columns.size):
            y[i, j] = y_last[rows[i], columns[j]]
    return y, q


@kernel
def tame(row: Array, col: Array, c: Array) -> None:
    """Lower each a_i that is far above what fills its cap at any likely price; larger values only cost precision."""
    if row[U].min() == np.inf:
        return
    capacity = 0.0
    highest = 0.0
    for j in range(col.shape[1]):
        capacity += col[N, j]
        for i in range(row.shape[1]):
            highest = max(highest, c[i, j])
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
        row[A, i] = min(row[A, i], 10.0 * (high + highest) * row[U, i])


@kernel
def search(
    row: Array, col: Array, c: Array, warm: Array, every: bool, thinning: bool, tol: float, y: Array, q: Array
) -> tuple[int, float]:
    """Fill y (I, J) and q (J,) by interior point steps until the guessed support certifies; return steps and certificate.

    The steps use row[A], the a_i after `tame`, and all pairs with `every` (until most are ruled out, with `thinning`).
    The certificate uses row[TRUE_A] and all pairs. The search gives up, since it works on the wrong pairs, when prices
    ask for more further pairs at once than an optimum can use, or when the gap hardly shrinks.
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
        r = repair(pair, row, col, cols, width, c, mark, flag, number, POLISH_FROM, REPAIRABLE, y, q)
        if r <= tol:
            return 0, r
    bar = 0.0 if every else first_bar(pair, row, col, width)
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
            bar = 0.1 * mu
        elif not every and (mu < bar or tol < r < np.inf):
            bar = min(bar, 0.1 * mu)
            before = width.sum()
            while take_in(pair, row, col, cols, width, c, member, mu) > 0:
                pair, cols = widen(pair, cols, columns)
                mark = marks(*cols.shape)
            if width.sum() - before > width.size + columns:
                return k + 1, np.inf
    return STEPS if cold else WARM_STEPS, r


@kernel
def first_bar(pair: Array, row: Array, col: Array, width: IntArray) -> float:
    """Return the relative gap below which prices are accurate compared to the costs, even if far above them."""
    level = row[A].sum() / col[N].sum()
    return float(TAKE_IN_FROM * min(1.0, pair[C].sum() / (width.sum() * level)))


@kernel
def polish(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, c: Array, mark: BoolArray,
    flag: BoolArray, number: IntArray, mu: float, y: Array, q: Array,
) -> float:  # fmt: skip
    """Fill y (I, J) and q with the exact solution on the support that the point suggests; return its certificate.

    A support that is not a forest while the gap `mu` is wide counts as unclear: a large one is not tried. At a small gap
    the reason may be ties. Exchanging one pair for another seldom repairs those, so the prices must be right at once.
    """
    surplus = guess(pair, row, col, cols, width, mark, flag) - width.size - q.size
    tangled = surplus > 0 and cols.size > SMALL
    if tangled and mu > CLEAR:
        return np.inf
    col[RAW, :] = col[Q]
    bearable = 0 if tangled and mu > LATE else REPAIRABLE
    return repair(pair, row, col, cols, width, c, mark, flag, number, mu, bearable, y, q)


@kernel
def repair(
    pair: Array, row: Array, col: Array, cols: IntArray, width: IntArray, c: Array, mark: BoolArray,
    flag: BoolArray, number: IntArray, mu: float, bearable: int, y: Array, q: Array,
) -> float:  # fmt: skip
    """Fill y (I, J) and q from a guessed support and rough prices col[RAW], repaired where they contradict each other.

    Returns the certificate, or infinity if the guess cannot be repaired, or if more than `bearable` rows would rather
    buy elsewhere (known before the flows are).
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
        if contradictions > REPAIRABLE:
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
