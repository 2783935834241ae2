// Lines over time, their legend, and the time that all charts point at.
import { announce, clock, make, write } from './dom.js'
import { Canvas } from './drawing.js'
import { band, bounds, combine, line, ticks, times } from './lines.js'

const LEFT = 46
const RIGHT = 8
const TOP = 8
const BOTTOM = 20
const SHORTEST = 30 // seconds shown at least
const BANDS = 5 // most series with a band; more cannot be told apart
const GRAIN = 2.5 // pixels drawn as one point: the mean, and a band from the lowest to the highest value

/** A chart in a card.
 *
 * `shared` has the history, the painter, the theme, the cursor, and the seconds to show as `window`. `series()` returns
 * what to draw, and what only its table has: { column, label, colour, dashed, wide, hidden }; `format` formats a number; `top`, if any, ends the scale. */
export class Chart {
  constructor(card, shared, { series, format, top }) {
    Object.assign(this, { card, shared, series, format, top })
    const plot = make('div', { class: 'plot' })
    card.append(plot)
    this.canvas = new Canvas(plot, () => shared.painter.ask(this))
    this.hair = make('div', { class: 'hair', hidden: true })
    plot.append(this.hair)
    this.legend = new Legend(card)
    this.title = card.querySelector('h2').textContent
    this.#listen(this.canvas.element)
    shared.painter.watch(this, card)
    shared.cursor.listen(() => this.#point())
  }

  draw() {
    const { history, theme } = this.shared
    if (!history.size || this.canvas.width < LEFT + RIGHT) return
    const series = this.series().filter(one => !one.hidden)
    const plot = this.plot = this.#plot(series)
    const pen = this.canvas.clear(theme.font)
    this.#grid(pen, plot)
    pen.save()
    pen.beginPath()
    pen.rect(LEFT - 1, 0, this.canvas.width - LEFT - RIGHT + 2, this.canvas.height)
    pen.clip()
    for (const one of series) this.#line(pen, plot, one)
    pen.restore()
    this.#point()
  }

  /** Returns how times and values become pixels. */
  #plot(series) {
    const { history, window } = this.shared
    const to = history.at[history.last]
    const span = Math.min(window.seconds, Math.max(SHORTEST, to - history.at[history.start]))
    const from = to - span
    const first = Math.max(history.start, history.place(from) - 1)
    let range = [0, this.top ?? 0]
    for (const one of series) range = bounds(history.column(one.column), first, history.end, range)
    const lines = ticks(range[0], range[1] > range[0] ? range[1] : 1, 4)
    const [low, high] = [lines[0], lines.at(-1)]
    const across = (this.canvas.width - LEFT - RIGHT) / span
    const up = (this.canvas.height - TOP - BOTTOM) / (high - low)
    const bottom = this.canvas.height - BOTTOM
    const dense = series.length <= BANDS && history.end - first > (span * across) / GRAIN
    const [x, y] = [t => LEFT + (t - from) * across, v => bottom - (v - low) * up]
    return { first, from, to, lines, dense, pixel: 1 / across, x, y }
  }

  #grid(pen, plot) {
    const { theme } = this.shared
    const right = this.canvas.width - RIGHT
    pen.strokeStyle = theme.faint
    pen.fillStyle = theme.soft
    pen.lineWidth = 1
    pen.textAlign = 'right'
    pen.textBaseline = 'middle'
    pen.beginPath()
    for (const value of plot.lines) {
      const y = Math.round(plot.y(value)) + 0.5
      pen.moveTo(LEFT, y)
      pen.lineTo(right, y)
      pen.fillText(this.format(value), LEFT - 6, y)
    }
    pen.stroke()
    pen.textAlign = 'center'
    pen.textBaseline = 'alphabetic'
    const end = plot.to - plot.from > 400 ? -3 : undefined // without seconds
    for (const time of times(plot.from, plot.to, Math.max(2, right / 90))) {
      const x = plot.x(time)
      if (x > LEFT + 14 && x < right - 20) pen.fillText(clock(time).slice(-8, end), x, this.canvas.height - 4)
    }
  }

  #line(pen, plot, one) {
    const { history, theme } = this.shared
    const column = history.column(one.column)
    const points = combine(history.at, column, plot.first, history.end, GRAIN * plot.pixel, history.gap)
    pen.strokeStyle = pen.fillStyle = theme[one.colour]
    if (plot.dense) {
      pen.globalAlpha = 0.16
      pen.beginPath()
      band(pen, points, plot, GRAIN)
      pen.fill()
      pen.globalAlpha = 1
    }
    pen.lineWidth = one.wide ? 2.6 : 1.8
    pen.lineJoin = pen.lineCap = 'round'
    pen.setLineDash(one.dashed ? [5, 4] : [])
    pen.beginPath()
    line(pen, points, plot)
    pen.stroke()
    pen.setLineDash([])
  }

  /** Shows the values at the cursor, or the latest. */
  #point() {
    const { history, cursor } = this.shared
    if (!this.plot) return
    const place = cursor.time === null ? history.last : history.nearest(cursor.time)
    const series = this.series()
    const drawn = series.filter(one => !one.hidden)
    this.legend.name(drawn, series.length - drawn.length)
    this.legend.show(drawn.map(one => this.format(history.column(one.column)[place])))
    const x = this.plot.x(history.at[place])
    this.hair.hidden = cursor.time === null || x < LEFT || x > this.canvas.width
    this.hair.style.transform = `translateX(${Math.round(x)}px)`
  }

  #listen(canvas) {
    canvas.tabIndex = 0
    canvas.setAttribute('role', 'img')
    canvas.setAttribute('aria-label', `${this.title} over time. Arrow keys read values; a table follows.`)
    const { cursor } = this.shared
    for (const name of ['pointermove', 'click']) {  // a click is also the touch of a finger
      canvas.addEventListener(name, event => this.#reach(event.offsetX))
    }
    canvas.addEventListener('pointerleave', () => cursor.set(null))
    canvas.addEventListener('blur', () => cursor.set(null))
    canvas.addEventListener('keydown', event => this.#key(event))
  }

  #reach(x) {
    const { history, cursor } = this.shared
    if (!this.plot) return
    const { from, pixel } = this.plot
    const place = history.nearest(from + (x - LEFT) * pixel)
    cursor.set(place < 0 ? null : history.at[place])
  }

  #key(event) {
    const { history, cursor } = this.shared
    const all = history.size
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -all, End: all }[event.key]
    if (event.key === 'Escape') cursor.set(null)
    if (!step || !this.plot) return
    event.preventDefault()
    const now = cursor.time === null ? history.last : history.nearest(cursor.time)
    const place = Math.min(history.last, Math.max(this.plot.first, now + step))
    cursor.set(history.at[place])
    const drawn = this.series().filter(one => !one.hidden)
    const values = drawn.map(one => `${one.label} ${this.format(history.column(one.column)[place])}`)
    announce(`${clock(history.at[place])}: ${values.join(', ')}`)
  }
}

/** The names of series with their colours and their values at one time. */
class Legend {
  #shown = ''
  #values = []

  constructor(card) {
    this.list = make('ul', { class: 'legend' })
    this.note = make('p', { class: 'note', hidden: true })
    card.append(this.list, this.note)
  }

  /** Shows the names of the series, and how many more there are. */
  name(series, more) {
    const mark = JSON.stringify(series.map(one => [one.label, one.colour, one.dashed])) + more
    if (mark === this.#shown) return
    this.#shown = mark
    this.#values = series.map(() => make('b', { text: '' }))
    this.list.replaceChildren(...series.map((one, k) => make('li', {},
      make('span', { class: `swatch ${one.colour}${one.dashed ? ' dashed' : ''}`, 'aria-hidden': 'true' }),
      make('span', { class: 'name', text: one.label, title: one.label }), this.#values[k])))
    this.note.hidden = !more
    write(this.note, more ? `The largest of ${more + series.length} lines; all are in the table` : '')
  }

  /** Shows values in the order of the names. */
  show(texts) {
    texts.forEach((text, k) => write(this.#values[k], text))
  }
}

/** The time that is pointed at in all charts, or null; listeners are called when it changes. */
export class Cursor {
  time = null
  #listeners = []

  listen(listener) {
    this.#listeners.push(listener)
  }

  set(time) {
    if (time === this.time) return
    this.time = time
    for (const listener of this.#listeners) listener()
  }
}
