// Lists of jobs: dead letters, and recent leases.
import { announce, clock, duration, make, short, tabular, write } from './dom.js'

const EVERY = 20 // seconds between two loads of dead letters
const ROWS = 20
const NAMES = ['Job', 'Class', 'Server', 'Server class', 'Granted', 'Duration', 'State', 'Reward']

/** A table of dead jobs, newest first; an admin gets a button to retry each. */
export class Dead {
  #counted = null
  #loaded = 0
  #after = null

  constructor(card, api, { admin, open }) {
    Object.assign(this, { api, admin, open })
    const names = ['Job', 'Class', 'Attempts', 'Died', 'Error', ...(admin ? ['Action'] : [])]
    this.body = make('tbody')
    this.scroll = tabular('Dead letters, newest first', names, this.body)
    this.scroll.hidden = true
    this.note = make('p', { class: 'note', role: 'status', text: 'Loading' })
    const older = () => this.#load(this.#after)
    this.older = make('button', { class: 'plain', text: 'Show older', hidden: true, onclick: older })
    card.append(this.note, this.scroll, this.older)
  }

  /** Loads the table again if more jobs died, and now and then, since others may retry jobs, unless it has the focus. */
  update({ at, counters }) {
    const counted = counters.dead ?? 0
    const old = at - this.#loaded > EVERY && this.body.rows.length <= ROWS && !this.scroll.matches(':focus-within')
    if (counted === this.#counted && !old) return
    this.#counted = counted
    this.#loaded = at
    this.#load(null)
  }

  async #load(after) {
    try {
      const found = await this.api.get('v1/dead', { limit: ROWS, ...(after && { after }) })
      if (!after) this.body.replaceChildren()
      this.body.append(...found.jobs.map(job => this.#row(job)))
      this.#after = found.after
      this.older.hidden = found.after === null
      this.#count('No dead jobs')
    } catch (error) {
      write(this.note, `Could not load: ${error.message}`)
      this.#counted = null
    }
  }

  #count(words) {
    const many = this.body.rows.length
    this.scroll.hidden = !many
    this.note.hidden = many > 0
    write(this.note, words)
  }

  #row(job) {
    const link = make('button', { class: 'link', text: job.id, onclick: () => this.open(job.id) })
    const texts = { Class: job.class, Attempts: String(job.attempts), Died: clock(job.ended), Error: job.error ?? '' }
    const cells = Object.entries(texts).map(([name, text]) => make('td', { text, 'data-name': name }))
    const row = make('tr', { 'data-job': job.id }, make('td', {}, link), ...cells)
    if (this.admin) {
      const retry = event => this.#retry(job.id, row, event.target)
      row.append(make('td', {}, make('button', { text: 'Retry', 'aria-label': `Retry ${job.id}`, onclick: retry })))
    }
    return row
  }

  async #retry(id, row, button) {
    button.disabled = true
    try {
      await this.api.post(`v1/dead/${id}/retry`)
      const next = row.nextElementSibling ?? row.previousElementSibling
      row.remove()
      next?.querySelector('button').focus()
      this.#count(`${id} is queued again`)
      announce(`${id} is queued again`)
    } catch (error) {
      button.disabled = false
      this.note.hidden = false
      write(this.note, `Could not retry ${id}: ${error.message}`)
    }
  }
}

/** A table of leases, newest first; `open(id)` shows a job, `name(id)` names a server. Rows are reused, so that a button
 * keeps the focus. */
export class Leases {
  #rows = new Map()
  #last = []

  constructor(card, open, name) {
    Object.assign(this, { open, name })
    this.body = make('tbody')
    this.empty = make('p', { class: 'note', text: 'No leases yet' })
    this.scroll = tabular('Recent leases, newest first', NAMES, this.body)
    card.append(this.empty, this.scroll)
  }

  show(leases = this.#last) {
    this.#last = leases
    this.empty.hidden = leases.length > 0
    this.scroll.hidden = !this.empty.hidden
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
    const row = make('tr', { 'data-lease': lease.lease }, make('td', {}, link),
      ...NAMES.slice(1).map(name => make('td', { 'data-name': name })))
    this.#rows.set(lease.lease, row)
    this.body.prepend(row)
  }

  #fill(row, lease) {
    const taken = lease.ended === null ? '' : duration(lease.ended - lease.granted)
    const where = [lease.class, this.name(lease.server), lease.server_class]
    const texts = [...where, clock(lease.granted), taken, lease.state, short(lease.reward)]
    texts.forEach((text, k) => write(row.cells[k + 1], text))
    row.dataset.state = lease.state
  }
}
