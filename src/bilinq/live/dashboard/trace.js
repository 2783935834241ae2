// A column of numbers as a line with as many points as can be told apart.

const ROOM = 4096
const [time, low, high, mean] = [1, 2, 3, 4].map(() => new Float64Array(ROOM))
const points = { many: 0, time, low, high, mean, breaks: new Uint8Array(ROOM) }

/** Returns the moments of a column from `first` to `end` put together into grains of so many seconds: their middle time,
 * lowest, highest and mean number, and whether the line is broken before them. What is returned holds until the next call.
 *
 * Grains begin at round times, so that a line keeps its shape while it moves on. The line is broken where nothing is known
 * and where no moment came for longer than `gap` seconds. */
export function grind(at, column, first, end, grain, gap) {
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

/** Puts the line through the means into the pen's path. */
export function line(pen, { many, time, mean, breaks }, plot) {
  for (let k = 0; k < many; k += 1) {
    const [x, y] = [plot.x(time[k]), plot.y(mean[k])]
    if (breaks[k]) pen.moveTo(x, y)
    pen.lineTo(x, y)
  }
}

/** Puts the band between lowest and highest into the pen's path, as bars. */
export function band(pen, { many, time, low, high }, plot, wide) {
  for (let k = 0; k < many; k += 1) {
    const top = plot.y(high[k])
    const tall = plot.y(low[k]) - top
    if (tall >= 1) pen.rect(plot.x(time[k]) - wide / 2, top, wide, tall)
  }
}

/** Returns the lowest and the highest number of a column from `first` to `end`, with those in `known`. */
export function bounds(column, first, end, known) {
  let [low, high] = known
  for (let i = first; i < end; i += 1) {
    if (column[i] < low) low = column[i]
    if (column[i] > high) high = column[i]
  }
  return [low, high]
}
