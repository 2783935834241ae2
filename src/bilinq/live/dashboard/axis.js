// Where the lines of a grid are.

const TIMES = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600]

/** Returns round numbers from `low` to at least `high`, about `many` of them. */
export function ticks(low, high, many) {
  const rough = (high - low) / many || 1
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = power * [1, 2, 5, 10].find(k => k * power >= rough * (1 - 1e-9))
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)]
  return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)))
}

/** Returns round times between two, at most `many`. */
export function times(from, to, many) {
  const step = TIMES.find(seconds => (to - from) / seconds <= many) ?? TIMES.at(-1)
  const first = Math.ceil(from / step)
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, k) => (first + k) * step)
}
