// Tables with the data of charts. They are filled when opened, and updated while they are open.
import { clock, exact, make, write } from './dom.js'

const MOST = 1000 // cells of a table of samples
const ROWS = 60
const CELLS = 300 // cells written in one frame
const WIDE = 7 // width of a column in rem

/** A table in a card that can be folded; the painter decides when it is filled. */
class Fold {
  heavy = true

  constructor(card, painter, words) {
    this.painter = painter
    this.title = card.querySelector('h2').textContent
    this.body = make('tbody')
    this.head = make('tr')
    this.caption = make('caption', { text: words })
    this.table = make('table', { class: 'even' }, this.caption, make('thead', {}, this.head), this.body)
    const named = { tabindex: '0', role: 'region', 'aria-label': `${this.title}: table` }
    this.scroll = make('div', { class: 'scroll', ...named }, this.table)
    const update = () => this.update()
    this.fold = make('details', { class: 'behind', ontoggle: update }, make('summary', { text: 'Table' }), this.scroll)
    card.append(this.fold)
    painter.watch(this, this.fold)
  }

  /** Fills the table soon, if it is open. */
  update() {
    if (this.fold.open) this.painter.ask(this)
  }

  /** Sets the names of the columns, all equally wide: a browser lays that out ten times as fast. */
  names(first, rest) {
    this.head.replaceChildren(...[first, ...rest].map(name => make('th', { scope: 'col', text: name, title: name })))
    this.table.style.minWidth = `${WIDE * (rest.length + 1)}rem`
  }
}

/** The latest samples of some columns, newest first; `columns()` returns a list of { column, label }. */
export class TimeTable extends Fold {
  #newest = 0
  #oldest = 0
  #named = ''
  #rows = ROWS

  constructor(card, painter, history, columns) {
    super(card, painter, 'The latest samples, newest first')
    Object.assign(this, { history, columns })
    this.scroll.after(make('button', { class: 'plain', text: 'Save the last hour as CSV', onclick: () => this.#save() }))
  }

  draw() {
    const { at, last, size } = this.history
    if (!size) return
    const columns = this.columns()
    const named = JSON.stringify(columns.map(one => [one.column, one.label]))
    if (named !== this.#named) {
      this.#named = named
      this.names('Time', columns.map(one => one.label))
      this.body.replaceChildren()
      this.#rows = Math.min(ROWS, Math.ceil(MOST / columns.length))
      this.#newest = at[last]
      this.#oldest = at[last] + 1
    }
    const portion = Math.ceil(CELLS / (columns.length + 1))
    const fresh = this.history.place(this.#newest + 1e-6)
    for (let i = Math.max(fresh, last - this.#rows + 1); i <= last; i += 1) this.body.prepend(this.#row(columns, i))
    this.#newest = at[last]
    this.#fill(columns, portion)
    while (this.body.rows.length > this.#rows) this.body.lastChild.remove()
  }

  /** Adds a portion of older samples, until there are enough. */
  #fill(columns, portion) {
    const { at, start } = this.history
    let i = this.history.place(this.#oldest) - 1
    for (let k = 0; k < portion && i >= start && this.body.rows.length < this.#rows; k += 1, i -= 1) {
      this.body.append(this.#row(columns, i))
      this.#oldest = at[i]
    }
    if (i >= start && this.body.rows.length < this.#rows) this.painter.ask(this)
  }

  #row(columns, i) {
    const values = columns.map(one => make('td', { text: exact(this.history.column(one.column)[i]) }))
    const at = this.history.at[i]
    return make('tr', { 'data-at': at }, make('th', { scope: 'row', text: clock(at) }), ...values)
  }

  #save() {
    const columns = this.columns()
    const quoted = text => `"${String(text).replaceAll('"', '""')}"`
    const lines = [['at', ...columns.map(one => quoted(one.label))].join(',')]
    for (let i = this.history.start; i < this.history.end; i += 1) {
      const values = columns.map(one => this.history.column(one.column)[i])
      lines.push([this.history.at[i], ...values.map(value => (Number.isNaN(value) ? '' : value))].join(','))
    }
    const address = URL.createObjectURL(new Blob([`${lines.join('\n')}\n`], { type: 'text/csv' }))
    make('a', { href: address, download: `${this.title.toLowerCase().replaceAll(' ', '-')}.csv` }).click()
    URL.revokeObjectURL(address)
  }
}

/** A matrix with names; `read(value, width)` returns a cell as text. */
export class MatrixTable extends Fold {
  #named = ''
  #matrix = null
  #next = 0

  constructor(card, painter, read) {
    super(card, painter, 'Rows are job classes, columns server classes')
    this.read = read
  }

  show(matrix) {
    this.#matrix = matrix
    if (this.#next >= matrix.values.length) this.#next = 0 // otherwise the update under way continues with the new values
    this.update()
  }

  draw() {
    if (!this.#matrix) return
    const { rows, columns, values, widths } = this.#matrix
    const named = JSON.stringify([rows, columns, values.length])
    if (named !== this.#named) {
      this.#named = named
      this.names('Job class', columns)
      this.body.replaceChildren()
      this.#next = 0
    }
    const end = Math.min(values.length, this.#next + Math.ceil(CELLS / (columns.length + 1)))
    for (let i = this.#next; i < end; i += 1) {
      if (i === this.body.rows.length) this.body.append(this.#row(rows[i], columns))
      values[i].forEach((value, j) => write(this.body.rows[i].cells[j + 1], this.read(value, widths?.[i][j])))
    }
    this.#next = end
    if (end < values.length) this.painter.ask(this)
  }

  #row(name, columns) {
    return make('tr', {}, make('th', { scope: 'row', text: name }), ...columns.map(() => make('td')))
  }
}
