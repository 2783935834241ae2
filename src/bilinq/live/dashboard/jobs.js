// The search for a job, and the dialog that shows it with its history.
import { decisionOf } from './decision.js'
import { announce, byId, clock, duration, exact, make } from './dom.js'

const ENDED = ['done', 'dead', 'cancelled', 'expired']

/** The search field, and the dialog that shows a job. */
export class Jobs {
  #job = null

  constructor(api) {
    this.api = api
    this.dialog = byId('job')
    byId('search').addEventListener('submit', event => {
      event.preventDefault()
      this.#find(byId('wanted').value.trim())
    })
    this.dialog.addEventListener('click', event => { if (event.target === this.dialog) this.dialog.close() })
    this.dialog.addEventListener('close', () => { this.#job = null })
  }

  /** Shows a job by its id. */
  async open(id) {
    try {
      this.#show(await this.api.get(`v1/jobs/${encodeURIComponent(id)}`))
    } catch (error) {
      this.#fail(id, error)
    }
  }

  /** Loads the shown job again, unless it has ended. */
  async refresh() {
    if (this.#job === null || ENDED.includes(this.#job.state)) return
    const shown = this.#job.id
    const job = await this.api.get(`v1/jobs/${shown}`).catch(() => null)
    if (job && this.#job?.id === shown && JSON.stringify(job) !== JSON.stringify(this.#job)) this.#show(job)
  }

  async #find(text) {
    if (!text) return
    try {
      this.#show(await this.#lookUp(text))
    } catch (error) {
      this.#fail(text, error)
    }
  }

  /** Returns the job with this id or, if there is none, with this key. */
  async #lookUp(text) {
    if (/^j\d+$/.test(text)) {
      try {
        return await this.api.get(`v1/jobs/${text}`)
      } catch (error) {
        if (error.status !== 404) throw error
      }
    }
    const found = await this.api.get('v1/jobs', { key: text })
    if (!found.jobs.length) throw new Error(`no job has the id or key ${text}`)
    return this.api.get(`v1/jobs/${found.jobs[0].id}`)
  }

  #fail(text, error) {
    this.#job = null
    this.#fill(text, make('p', { class: 'problem', role: 'alert', text: `Not found: ${error.message}` }))
  }

  #show(job) {
    this.#job = job
    const facts = make('dl', { class: 'facts' })
    for (const [name, value] of factsOf(job)) facts.append(make('dt', { text: name }), make('dd', { text: value }))
    const parts = [facts, decisionOf(this.api, job.id), make('h3', { text: 'History' }), historyOf(job)]
    for (const [title, value] of [['Payload', job.payload], ['Result', job.result]]) {
      const text = JSON.stringify(value, null, 2)
      if (value !== null) parts.push(make('h3', { text: title }), make('pre', { tabindex: '0', text }))
    }
    this.#fill(`Job ${job.id}`, make('p', {}, make('span', { class: `chip ${job.state}`, text: job.state })), ...parts)
    announce(`Job ${job.id} is ${job.state}`)
  }

  #fill(title, ...parts) {
    const close = make('button', { class: 'plain close', text: 'Close', onclick: () => this.dialog.close() })
    const held = this.dialog.open && this.dialog.contains(document.activeElement)
    this.dialog.replaceChildren(make('h2', { id: 'job-title', text: title }), close, ...parts)
    if (!this.dialog.open) this.dialog.showModal()
    else if (held) close.focus()
  }
}

function factsOf(job) {
  const facts = [['Class', job.class], ['Key', job.key], ['Namespace', job.namespace]]
  facts.push(['Tags', job.tags?.length ? job.tags.join(', ') : null], ['Servers', job.servers?.join(', ') ?? null])
  facts.push(['Features', job.features?.map(exact).join(', ') ?? null], ['Weight', job.weight && exact(job.weight)])
  facts.push(['Not before', job.not_before && clock(job.not_before)], ['Deadline', job.deadline && clock(job.deadline)])
  facts.push(['Units', job.units === 1 ? null : `${job.units - job.units_left} of ${job.units} served`])
  const most = job.max_attempts ? `${job.attempts} of ${job.max_attempts}` : String(job.attempts)
  facts.push(['Failed attempts', job.attempts || job.max_attempts ? most : null], ['Submitted', clock(job.submitted)])
  facts.push(['Wait', job.started === null ? null : duration(job.started - job.submitted)])
  facts.push(['Duration', job.ended === null || job.started === null ? null : duration(job.ended - job.started)])
  const awaited = job.state === 'done' ? 'awaited' : null
  facts.push(['Reward', job.reward === null ? awaited : exact(job.reward)], ['Error', job.error])
  return facts.filter(([, value]) => value !== null && value !== undefined)
}

function historyOf(job) {
  const list = make('ol', { class: 'history' })
  for (const event of job.history) {
    const where = event.server ? ` on ${event.server}` : ''
    const after = event.at > job.submitted ? `+${duration(event.at - job.submitted)}` : ''
    list.append(make('li', {}, make('time', { datetime: new Date(1000 * event.at).toISOString(), text: clock(event.at) }),
      make('span', { text: `${event.what}${where}` }), make('span', { class: 'after', text: after }),
      ...(event.detail ? [make('span', { class: 'detail', text: event.detail })] : [])))
  }
  return list
}
