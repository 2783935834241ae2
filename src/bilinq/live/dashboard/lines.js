// The lines of a chart: grid values, which classes get a colour, and samples combined into points.

const TIMES = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600]
const COLOURS = ['c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8']
const EVERY = 30 // seconds between two choices of classes
const ROOM = 4096 // points of a line

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

/** Gives colours to classes. Of more than there are colours the `most` largest are drawn; a class that returns gets the colour
 * that it had, if that is free. */
export class Palette {
  #colour = new Map()
  #before = new Map()
  #chosen = -Infinity
  #names = ''

  constructor(most = COLOURS.length) {
    this.most = most
  }

  /** Returns the series of the classes `names`, in columns named `stem` and class; those without a colour are hidden. */
  series(history, stem, names) {
    const now = history.at[history.last]
    if (names.join('\n') !== this.#names || (names.length > COLOURS.length && now - this.#chosen > EVERY)) {
      this.#choose(history, stem, names)
      this.#names = names.join('\n')
      this.#chosen = now
    }
    return names.map(name => {
      const colour = this.#colour.get(name)
      return { column: `${stem} ${name}`, label: name, colour, hidden: !colour }
    })
  }

  #choose(history, stem, names) {
    const size = new Map(names.map(name => [name, average(history, history.column(`${stem} ${name}`))]))
    const few = names.length <= COLOURS.length
    const largest = few ? names : [...names].sort((a, b) => size.get(b) - size.get(a)).slice(0, this.most)
    for (const name of this.#colour.keys()) if (!largest.includes(name)) this.#colour.delete(name)
    const taken = new Set(this.#colour.values())
    const had = name => Number(this.#before.has(name) && !taken.has(this.#before.get(name)))
    for (const name of largest.filter(one => !this.#colour.has(one)).sort((a, b) => had(b) - had(a))) {
      const colour = had(name) ? this.#before.get(name) : COLOURS.find(one => !taken.has(one))
      taken.add(colour)
      this.#colour.set(name, colour)
      this.#before.set(name, colour)
    }
  }
}

function average(history, column) {
  let [total, many] = [0, 0]
  for (let i = history.start; i < history.end; i += 1) {
    if (Number.isNaN(column[i])) continue
    total += column[i]
    many += 1
  }
  return many ? total / many : 0
}

const [time, low, high, mean] = [1, 2, 3, 4].map(() => new Float64Array(ROOM))
const points = { many: 0, time, low, high, mean, breaks: new Uint8Array(ROOM) }

/** Returns the samples of a column from `first` to `end`, combined into points of `grain` seconds: middle time, lowest,
 * highest and mean value, and whether the line is broken before the point. The result is valid until the next call.
 *
 * Points begin at round times, so that a line keeps its shape while it moves. The line is broken where a value is unknown
 * and where there is no sample for longer than `gap` seconds. */
export function combine(at, column, first, end, grain, gap) {
  let broken = true
  let edge = -Infinity
  let [k, sum, count, begin] = [-1, 0, 0, 0]
  for (let i = first; i < end; i += 1) {
    const value = column[i]
    if (value !== value) { // NaN, in a loop that must be fast
      broken = true
      continue
    }
    if (i > first && at[i] - at[i - 1] > gap) broken = true
    if (broken || at[i] >= edge) {
      if (k === ROOM - 1) break
      k += 1
      edge = (Math.floor(at[i] / grain) + 1) * grain
      points.breaks[k] = broken ? 1 : 0
      points.low[k] = points.high[k] = value
      sum = count = 0
      begin = at[i]
      broken = false
    }
    if (value < points.low[k]) points.low[k] = value
    if (value > points.high[k]) points.high[k] = value
    sum += value
    count += 1
    points.mean[k] = sum / count
    points.time[k] = (begin + at[i]) / 2
  }
  points.many = k + 1
  return points
}

/** Adds the line through the means to the pen's path. */
export function line(pen, { many, time, mean, breaks }, plot) {
  for (let k = 0; k < many; k += 1) {
    const [x, y] = [plot.x(time[k]), plot.y(mean[k])]
    if (breaks[k]) pen.moveTo(x, y)
    pen.lineTo(x, y)
  }
}

/** Adds the band between lowest and highest values to the pen's path, as bars. */
export function band(pen, { many, time, low, high }, plot, wide) {
  for (let k = 0; k < many; k += 1) {
    const top = plot.y(high[k])
    const tall = plot.y(low[k]) - top
    if (tall >= 1) pen.rect(plot.x(time[k]) - wide / 2, top, wide, tall)
  }
}

/** Returns the lowest and highest values of a column from `first` to `end` and of `known`. */
export function bounds(column, first, end, known) {
  let [low, high] = known
  for (let i = first; i < end; i += 1) {
    if (column[i] < low) low = column[i]
    if (column[i] > high) high = column[i]
  }
  return [low, high]
}
