// Leases that were granted lately.
import { make, tabular, write } from './dom.js'
import { clock, duration, short } from './words.js'

const ROWS = 20
const NAMES = ['Job', 'Class', 'Server', 'Server class', 'Granted', 'Took', 'State', 'Reward']

/** A table of leases, newest first; `open(id)` shows a job. Rows stay where they are, so that a button keeps the focus. */
export class Leases {
  #rows = new Map()

  constructor(card, open) {
    this.open = open
    this.body = make('tbody')
    this.empty = make('p', { class: 'note', text: 'None yet' })
    card.append(this.empty, tabular('Recent leases, newest first', NAMES, this.body))
  }

  show(leases) {
    this.empty.hidden = leases.length > 0
    for (const lease of leases.slice(0, ROWS).reverse()) {
      if (!this.#rows.has(lease.lease)) this.#add(lease)
      this.#fill(this.#rows.get(lease.lease), lease)
    }
    while (this.body.rows.length > ROWS) {
      this.#rows.delete(this.body.lastChild.dataset.lease)
      this.body.lastChild.remove()
    }
  }

  #add(lease) {
    const link = make('button', { class: 'link', text: lease.job, onclick: () => this.open(lease.job) })
    const row = make('tr', { 'data-lease': lease.lease }, make('td', {}, link), ...NAMES.slice(1).map(() => make('td')))
    this.#rows.set(lease.lease, row)
    this.body.prepend(row)
  }

  #fill(row, lease) {
    const took = lease.ended === null ? '' : duration(lease.ended - lease.granted)
    const where = [lease.class, lease.server, lease.server_class]
    const texts = [...where, clock(lease.granted), took, lease.state, short(lease.reward)]
    texts.forEach((text, k) => write(row.cells[k + 1], text))
    row.dataset.state = lease.state
  }
}
