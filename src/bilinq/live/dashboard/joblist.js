// The list of jobs with filters, and what can be done with all jobs that match.
import { announce, byId, clock, count, duration, freshId, make, short, tabular, write } from './dom.js'

const ROWS = 20
const STATES = ['queued', 'leased', 'done', 'dead', 'cancelled', 'expired']
const OPEN = ['', 'queued', 'leased'] // states whose jobs can be cancelled
const NAMES = ['Job', 'Class', 'State', 'Submitted', 'Wait', 'Reward', 'Tags', 'Error']

/** Jobs by state, class and tag, newest first; an admin may cancel or retry all that match. */
export class JobList {
  #after = null
  #asked = 0

  constructor(card, api, { admin, open }) {
    Object.assign(this, { api, open })
    this.state = this.#select('State', STATES.map(name => [name, name]))
    this.class = this.#select('Class', [])
    this.tag = this.#field('Tag', make('input', { type: 'search', maxlength: '64', autocomplete: 'off' }))
    this.cancel = make('button', { type: 'button', text: 'Cancel all', onclick: () => this.#ask('cancel') })
    this.retry = make('button', { type: 'button', text: 'Retry all', onclick: () => this.#ask('retry') })
    const show = make('button', { class: 'main', text: 'Show' })
    const buttons = make('p', { class: 'buttons' }, show, ...(admin ? [this.cancel, this.retry] : []))
    const fields = [this.state, this.class, this.tag].map(input => input.parentElement)
    this.form = make('form', { onsubmit: event => this.#submit(event), onchange: () => this.load() },
      make('div', { class: 'fields' }, ...fields), buttons)
    this.note = make('p', { class: 'note', role: 'status' })
    this.body = make('tbody')
    this.scroll = tabular('Jobs, newest first', NAMES, this.body)
    this.older = make('button', { class: 'plain', text: 'Show older', hidden: true, onclick: () => this.load(this.#after) })
    card.append(this.form, this.note, this.scroll, this.older)
    this.load()
  }

  /** Offers these job classes in the filter. */
  classes(names) {
    if (names.length + 1 === this.class.options.length && names.every((name, i) => this.class.options[i + 1].value === name)) return
    const { value } = this.class
    this.class.replaceChildren(...options(names.map(name => [name, name])))
    this.class.value = names.includes(value) ? value : ''
  }

  /** Loads the first jobs that match, or those after a job. */
  async load(after = null) {
    const number = this.#asked += 1
    this.cancel.disabled = !OPEN.includes(this.state.value) || !this.#words()
    this.retry.disabled = !['', 'dead'].includes(this.state.value) || !this.#words()
    try {
      const found = await this.api.get('v1/jobs', { ...this.#filter(), limit: ROWS, ...(after && { after }) })
      if (number !== this.#asked) return
      if (!after) this.body.replaceChildren()
      this.body.append(...found.jobs.map(job => this.#row(job)))
      this.#after = found.after
      this.older.hidden = found.after === null
      this.scroll.hidden = !this.body.rows.length
      write(this.note, this.body.rows.length ? '' : 'No jobs match')
    } catch (error) {
      write(this.note, `Could not load: ${error.message}`)
    }
  }

  #submit(event) {
    event.preventDefault()
    this.load()
  }

  #filter() {
    const given = { state: this.state.value, class: this.class.value, tag: this.tag.value.trim() }
    return Object.fromEntries(Object.entries(given).filter(([, value]) => value))
  }

  #words() {
    return Object.entries(this.#filter()).map(([name, value]) => `${name} ${value}`).join(', ')
  }

  /** Asks before anything is changed. */
  #ask(what) {
    const dialog = byId('confirm')
    const filter = this.#filter()
    const [verb, which] = what === 'cancel' ? ['Cancel', 'that have not ended'] : ['Retry', 'that are dead']
    const go = () => {
      dialog.close()
      this.#change(what, filter)
    }
    dialog.replaceChildren(make('h2', { id: 'confirm-title', text: `${verb} jobs?` }),
      make('p', { text: `All jobs with ${this.#words()} ${which} will be ${what === 'cancel' ? 'cancelled' : 'queued again'}.` }),
      make('p', { class: 'buttons' }, make('button', { class: 'main', text: `${verb} all`, onclick: go }),
        make('button', { class: 'plain', text: 'Do nothing', onclick: () => dialog.close() })))
    dialog.showModal()
  }

  /** Changes all jobs that match, batch by batch. */
  async #change(what, filter) {
    const done = what === 'cancel' ? 'cancelled' : 'queued again'
    let total = 0
    let after = null
    this.cancel.disabled = this.retry.disabled = true
    try {
      do {
        const query = new URLSearchParams({ ...filter, ...(after && { after }) })
        const answer = await this.api.post(`v1/jobs/${what}?${query}`)
        total += answer.changed
        after = answer.after
        write(this.note, `${count(total, 'job')} ${done}`)
      } while (after !== null)
      await this.load()
      write(this.note, `${count(total, 'job')} ${done}`)
      announce(`${count(total, 'job')} ${done}`)
    } catch (error) {
      await this.load()
      write(this.note, `Stopped after ${count(total, 'job')}: ${error.message}`)
    }
  }

  #select(label, values) {
    return this.#field(label, make('select', {}, ...options(values)))
  }

  #field(label, input) {
    input.id = freshId('filter')
    make('div', {}, make('label', { for: input.id, text: label }), input)
    return input
  }

  #row(job) {
    const link = make('button', { class: 'link', text: job.id, onclick: () => this.open(job.id) })
    const wait = job.started === null ? '' : duration(job.started - job.submitted)
    const reward = job.reward === null ? '' : short(job.reward)
    const texts = [job.class, job.state, clock(job.submitted), wait, reward, job.tags.join(' '), job.error ?? '']
    return make('tr', { 'data-job': job.id, 'data-state': job.state }, make('td', {}, link),
      ...texts.map((text, k) => make('td', { text, 'data-name': NAMES[k + 1] })))
  }
}

function options(values) {
  return [['', 'all'], ...values].map(([value, text]) => make('option', { value, text }))
}
