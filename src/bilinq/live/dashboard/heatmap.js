// A matrix of job classes and server classes as coloured squares.
import { announce, make, short, write } from './dom.js'
import { Canvas } from './drawing.js'

const GAP = 2
const LOWEST = 12 // least height of a row in pixels
const HIGHEST = 30
const MANY = 200 // with more cells, drawing takes a frame of its own
const SMALLEST = 0.22 // side of the square of an unknown value, as a share of the full one

/** A heat map in a card.
 *
 * `show` sets `matrix`: { rows, columns, values, widths, low, high, doubt }; `widths` may be null, and `doubt` is the width of
 * an unknown value. `ramp` names the colours and `read(value, width)` returns a cell as text. */
export class Heatmap {
  matrix = null
  #at = null

  constructor(card, shared, { ramp, read }) {
    Object.assign(this, { shared, ramp, read })
    this.plot = make('div', { class: 'plot heat' })
    this.empty = make('p', { class: 'note', text: 'No data yet' })
    this.words = make('p', { class: 'reading', text: ' ' })
    card.append(this.empty, this.plot, this.words)
    this.canvas = new Canvas(this.plot, () => shared.painter.ask(this))
    this.title = card.querySelector('h2').textContent
    this.#listen(this.canvas.element)
    shared.painter.watch(this, card)
  }

  /** Shows a matrix, or, if it has no values, the text `why`. */
  show(matrix, why) {
    const some = matrix.values.length > 0 && matrix.values.length === matrix.rows.length
    this.matrix = some ? matrix : null
    this.empty.hidden = some
    this.plot.hidden = this.words.hidden = !some
    write(this.empty, why)
    if (!some) return
    this.heavy = matrix.rows.length * matrix.columns.length > MANY
    const row = Math.min(HIGHEST, Math.max(LOWEST, 300 / matrix.rows.length))
    this.plot.style.height = `${Math.round(row * matrix.rows.length + 62)}px`
    this.shared.painter.ask(this)
  }

  draw() {
    if (!this.matrix || !this.canvas.width) return
    const { theme } = this.shared
    const pen = this.canvas.clear(theme.font)
    const grid = this.grid = this.#grid(pen)
    this.#names(pen, grid)
    for (let i = 0; i < this.matrix.rows.length; i += 1) {
      for (let j = 0; j < this.matrix.columns.length; j += 1) this.#cell(pen, grid, i, j)
    }
    this.#scale(pen, grid)
    this.#describe()
  }

  #grid(pen) {
    const { rows, columns } = this.matrix
    const widest = names => Math.max(...names.map(name => pen.measureText(name).width))
    const left = Math.min(this.canvas.width * 0.3, widest(rows) + 10)
    const across = Math.min(180, (this.canvas.width - left) / columns.length)
    const upright = widest(columns) > across - 4
    const top = upright ? Math.min(70, widest(columns) + 8) : 18
    const down = (this.canvas.height - top - 26) / rows.length
    return { left, top, across, down, upright }
  }

  #names(pen, grid) {
    const { rows, columns } = this.matrix
    pen.fillStyle = this.shared.theme.soft
    pen.textBaseline = 'middle'
    pen.textAlign = 'right'
    rows.forEach((name, i) => pen.fillText(cut(pen, name, grid.left - 8), grid.left - 6, grid.top + (i + 0.5) * grid.down))
    columns.forEach((name, j) => {
      const x = grid.left + (j + 0.5) * grid.across
      pen.textAlign = grid.upright ? 'left' : 'center'
      pen.save()
      pen.translate(x, grid.upright ? grid.top - 4 : grid.top - 9)
      if (grid.upright) pen.rotate(-Math.PI / 2)
      pen.fillText(cut(pen, name, grid.upright ? grid.top - 6 : grid.across), 0, 0)
      pen.restore()
    })
  }

  #cell(pen, grid, i, j) {
    const { values, widths, low, high, doubt } = this.matrix
    const { theme } = this.shared
    const [x, y] = [grid.left + j * grid.across, grid.top + i * grid.down]
    const [wide, tall] = [grid.across - GAP, grid.down - GAP]
    const side = widths ? 1 - (1 - SMALLEST) * Math.sqrt(Math.min(1, widths[i][j] / doubt)) : 1
    const colour = theme[this.ramp]((values[i][j] - low) / (high - low || 1))
    if (widths) {
      pen.fillStyle = theme.faint
      pen.fillRect(x, y, wide, tall)
    }
    pen.fillStyle = colour.fill
    pen.fillRect(x + (wide * (1 - side)) / 2, y + (tall * (1 - side)) / 2, wide * side, tall * side)
    if (values[i][j] !== 0 && wide > 34 && tall > 14 && side > 0.6) {
      pen.fillStyle = colour.ink
      pen.textAlign = 'center'
      pen.fillText(short(Number(values[i][j].toFixed(2))), x + wide / 2, y + tall / 2 + 0.5)
    }
    if (this.#at && this.#at[0] === i && this.#at[1] === j) {
      pen.strokeStyle = theme.ink
      pen.lineWidth = 2
      pen.strokeRect(x, y, wide, tall)
    }
  }

  /** Draws the scale of the colours. */
  #scale(pen, grid) {
    const { theme } = this.shared
    const wide = Math.min(160, this.canvas.width - grid.left - 100)
    const y = this.canvas.height - 14
    for (let k = 0; k < wide; k += 2) {
      pen.fillStyle = theme[this.ramp](k / wide).fill
      pen.fillRect(grid.left + 36 + k, y, 2, 8)
    }
    pen.fillStyle = theme.soft
    pen.textAlign = 'right'
    pen.fillText(short(this.matrix.low), grid.left + 31, y + 4)
    pen.textAlign = 'left'
    pen.fillText(short(this.matrix.high), grid.left + wide + 41, y + 4)
  }

  #describe() {
    const { rows, columns } = this.matrix
    const inside = this.#at && this.#at[0] < rows.length && this.#at[1] < columns.length
    write(this.words, inside ? this.#text(this.#at) : 'Touch or point at a cell, or use the arrow keys')
  }

  #text([i, j]) {
    const { rows, columns, values, widths } = this.matrix
    return `${rows[i]} on ${columns[j]}: ${this.read(values[i][j], widths?.[i][j])}`
  }

  #move(cell) {
    const same = cell && this.#at && cell[0] === this.#at[0] && cell[1] === this.#at[1]
    if (same || !this.grid) return
    this.#at = cell
    this.shared.painter.ask(this)
  }

  #listen(canvas) {
    canvas.tabIndex = 0
    canvas.setAttribute('role', 'img')
    canvas.setAttribute('aria-label', `${this.title} by job class and server class. Arrow keys read cells; a table follows.`)
    for (const name of ['pointermove', 'click']) {  // a click is also the touch of a finger
      canvas.addEventListener(name, event => this.#move(this.#under(event.offsetX, event.offsetY)))
    }
    canvas.addEventListener('pointerleave', () => this.#move(null))
    canvas.addEventListener('blur', () => this.#move(null))
    canvas.addEventListener('keydown', event => this.#key(event))
  }

  #under(x, y) {
    if (!this.grid) return null
    const [i, j] = [Math.floor((y - this.grid.top) / this.grid.down), Math.floor((x - this.grid.left) / this.grid.across)]
    const inside = i >= 0 && j >= 0 && i < this.matrix.rows.length && j < this.matrix.columns.length
    return inside ? [i, j] : null
  }

  #key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key]
    if (event.key === 'Escape') this.#move(null)
    if (!step || !this.matrix) return
    event.preventDefault()
    const { rows, columns } = this.matrix
    const [i, j] = this.#at ?? [-step[0], -step[1]]
    const cell = [clamp(i + step[0], rows.length), clamp(j + step[1], columns.length)]
    this.#move(cell)
    announce(this.#text(cell))
  }
}

function clamp(place, many) {
  return Math.min(many - 1, Math.max(0, place))
}

/** Returns a name shortened to a width; the middle is removed, since names often differ at the end. */
function cut(pen, name, wide) {
  if (pen.measureText(name).width <= wide) return name
  const end = name.slice(-Math.min(6, Math.floor(name.length / 2)))
  let begin = name.slice(0, -end.length)
  while (begin && pen.measureText(`${begin}…${end}`).width > wide) begin = begin.slice(0, -1)
  return `${begin.trimEnd()}…${end}`
}
