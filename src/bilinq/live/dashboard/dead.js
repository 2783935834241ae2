// Jobs that failed too often.
import { make, say, tabular, write } from './dom.js'
import { clock } from './words.js'

const MANY = 20
const EVERY = 20 // seconds

/** A table of dead jobs, newest first, with a button to let each wait again for those who may. */
export class Dead {
  #counted = null
  #looked = 0
  #after = null

  constructor(card, api, { admin, open }) {
    Object.assign(this, { api, admin, open })
    const names = ['Job', 'Class', 'Attempts', 'Died', 'Error', ...(admin ? ['Again'] : [])]
    this.body = make('tbody')
    this.scroll = tabular('Dead letters, newest first', names, this.body)
    this.scroll.hidden = true
    this.note = make('p', { class: 'note', role: 'status', text: 'Looking' })
    const older = () => this.#load(this.#after)
    this.older = make('button', { class: 'plain', text: 'Older ones', hidden: true, onclick: older })
    card.append(this.note, this.scroll, this.older)
  }

  /** Looks again if more jobs died; and now and then, since others may retry them, too, unless somebody is at it here. */
  update({ at, counters }) {
    const counted = counters.dead ?? 0
    const old = at - this.#looked > EVERY && this.body.rows.length <= MANY && !this.scroll.matches(':focus-within')
    if (counted === this.#counted && !old) return
    this.#counted = counted
    this.#looked = at
    this.#load(null)
  }

  async #load(after) {
    try {
      const found = await this.api.get('v1/dead', { limit: MANY, ...(after && { after }) })
      if (!after) this.body.replaceChildren()
      this.body.append(...found.jobs.map(job => this.#row(job)))
      this.#after = found.after
      this.older.hidden = found.after === null
      this.#count('None; all is well')
    } catch (error) {
      write(this.note, `Cannot be shown: ${error.message}`)
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
    const cells = [job.class, String(job.attempts), clock(job.ended), job.error ?? ''].map(text => make('td', { text }))
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
      this.#count(`${id} waits again`)
      say(`${id} waits again`)
    } catch (error) {
      button.disabled = false
      this.note.hidden = false
      write(this.note, `${id} cannot be retried: ${error.message}`)
    }
  }
}
