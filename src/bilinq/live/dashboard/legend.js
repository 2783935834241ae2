// Names, colours and values of what a chart shows.
import { make, write } from './dom.js'

/** The names of series with their values at one moment. */
export class Legend {
  #shown = ''
  #values = []

  constructor(card) {
    this.list = make('ul', { class: 'legend' })
    this.note = make('p', { class: 'note', hidden: true })
    card.append(this.list, this.note)
  }

  /** Names the series; those that are `quiet` are only counted. */
  name(series) {
    const loud = series.filter(one => !one.quiet)
    const mark = JSON.stringify(loud.map(one => [one.label, one.colour, one.dashed])) + series.length
    if (mark === this.#shown) return
    this.#shown = mark
    this.#values = loud.map(one => make('b', { text: '' }))
    this.list.replaceChildren(...loud.map((one, k) => make('li', {},
      make('span', { class: `swatch ${one.colour}${one.dashed ? ' dashed' : ''}`, 'aria-hidden': 'true' }),
      make('span', { class: 'name', text: one.label, title: one.label }), this.#values[k])))
    const rest = series.length - loud.length
    this.note.hidden = !rest
    write(this.note, rest ? `and ${rest} more in grey; all are in the table` : '')
  }

  /** Shows values in the order of the names. */
  show(texts) {
    texts.forEach((text, k) => write(this.#values[k], text))
  }
}
