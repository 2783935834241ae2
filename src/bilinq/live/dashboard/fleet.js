// The list of servers: what each does, which are held and why, and buttons to hold and release them.
import { announce, clock, make, tabular, write } from './dom.js'

const EVERY = 10 // seconds between two loads
const NAMES = ['Server', 'Class', 'State', 'Seen']
const MOST = 200 // servers shown; those that are held come first
const HOLDS = [['drain', 'Drain'], ['quarantine', 'Quarantine']]

/** A table of servers; an admin gets buttons to drain, quarantine and release each. `loaded(servers)` is called with all of them. */
export class Fleet {
  #loaded = 0
  #rows = new Map()
  #names = new Map()

  constructor(card, api, { admin, loaded }) {
    Object.assign(this, { api, admin, loaded })
    this.note = make('p', { class: 'note', role: 'status', text: 'Loading' })
    this.body = make('tbody')
    this.scroll = tabular('Servers', [...NAMES, ...(admin ? ['Action'] : [])], this.body)
    card.append(this.note, this.scroll)
  }

  /** Loads the servers now and then. */
  update({ at }) {
    if (at - this.#loaded < EVERY) return
    this.#loaded = at
    this.load()
  }

  /** Returns the name of a server, or its id if it has none. */
  name(id) {
    return this.#names.get(id) ?? id
  }

  async load() {
    try {
      const servers = await this.api.get('v1/servers')
      this.#names = new Map(servers.map(one => [one.id, one.name]))
      this.loaded(servers)
      const held = servers.filter(one => one.held)
      const shown = [...held, ...servers.filter(one => !one.held)].slice(0, MOST)
      this.#keep(shown)
      this.scroll.hidden = !shown.length
      const words = shown.length < servers.length ? `; ${MOST} are shown` : ''
      write(this.note, servers.length ? `${servers.length} registered, ${held.length} get no jobs${words}` : 'No servers')
    } catch (error) {
      write(this.note, `Could not load: ${error.message}`)
    }
  }

  /** Shows these servers; rows are reused, so that a button keeps the focus. */
  #keep(servers) {
    const ids = new Set(servers.map(one => one.id))
    for (const [id, row] of this.#rows) {
      if (ids.has(id)) continue
      row.remove()
      this.#rows.delete(id)
    }
    servers.forEach((server, k) => {
      if (!this.#rows.has(server.id)) this.#rows.set(server.id, this.#row(server.id))
      const row = this.#rows.get(server.id)
      if (this.body.rows[k] !== row) this.body.insertBefore(row, this.body.rows[k] ?? null)
      this.#fill(row, server)
    })
  }

  #row(id) {
    const row = make('tr', { 'data-server': id }, ...NAMES.map(name => make('td', { 'data-name': name })))
    row.cells[2].append(make('span', { class: 'chip' }), make('span', { class: 'reason' }))
    if (!this.admin) return row
    const button = ([what, text]) =>
      make('button', { text, 'data-what': what, onclick: event => this.#hold(id, what, event.target) })
    row.append(make('td', { class: 'actions' }, ...[...HOLDS, ['release', 'Release']].map(button)))
    return row
  }

  #fill(row, server) {
    const name = server.name ?? server.id
    write(row.cells[0], name.length > 24 ? `${name.slice(0, 23)}…` : name)
    row.cells[0].title = server.name === null ? server.id : `${server.name} (${server.id})`
    write(row.cells[1], server.class)
    const [chip, reason] = row.cells[2].children
    write(chip, server.held ?? server.state)
    chip.className = `chip ${server.held ?? server.state}`
    write(reason, server.reason ?? '')
    write(row.cells[3], clock(server.seen))
    for (const button of row.querySelectorAll('button')) {
      const { what } = button.dataset
      button.hidden = (what === 'release') !== Boolean(server.held)
      button.setAttribute('aria-label', `${button.textContent} ${name}`)
    }
  }

  async #hold(id, what, button) {
    button.disabled = true
    try {
      const server = await this.api.post(`v1/servers/${id}/${what}`)
      this.#fill(this.#rows.get(id), server)
      announce(`${server.name ?? id}: ${server.held ?? 'released'}`)
      await this.load()
    } catch (error) {
      write(this.note, `Could not ${what} ${id}: ${error.message}`)
    } finally {
      button.disabled = false
    }
  }
}
