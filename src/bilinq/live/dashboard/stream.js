// The service's stream of events: server-sent events over fetch, since EventSource cannot send a key.

const SILENCE = 40_000 // milliseconds; the service sends something every 15 s
const MOST = 3600 // samples to begin with
const FIRST_PAUSE = 500
const LONGEST_PAUSE = 10_000
const SLICE = 10 // milliseconds of work before the page may draw again

/** Calls `on.<event>(data)` for each event; after a lost connection it continues after the last sample received.
 *
 * `on.connection(state, words)` reports the connection: "connecting", "live", "lost", or "refused", which is final. */
export class Stream {
  #last = null
  #abort = null
  #timer = 0
  #wake = () => {}

  constructor(api, on) {
    this.api = api
    this.on = on
    addEventListener('online', () => this.#wake())
    document.addEventListener('visibilitychange', () => this.#wake())
  }

  async run() {
    let pause = FIRST_PAUSE
    for (;;) {
      this.on.connection('connecting', this.#last ? 'Catching up' : 'Connecting')
      try {
        await this.#follow(() => { pause = FIRST_PAUSE })
      } catch (error) {
        if (error.status === 401 || error.status === 403) return this.on.connection('refused', error.message)
      }
      await this.#pause(pause * (0.75 + 0.5 * Math.random()))
      pause = Math.min(2 * pause, LONGEST_PAUSE)
    }
  }

  /** Waits; returns early if the browser is online again or the page is shown again. */
  #pause(milliseconds) {
    const next = milliseconds < 1000 ? '' : `; next try in ${Math.round(milliseconds / 1000)} s`
    this.on.connection('lost', `Connection lost${next}`)
    return new Promise(resolve => {
      this.#wake = resolve
      setTimeout(resolve, milliseconds)
    })
  }

  /** Dispatches events until the connection ends or is silent for too long. */
  async #follow(opened) {
    this.#abort = new AbortController()
    const headers = { Accept: 'text/event-stream', ...(this.#last && { 'Last-Event-ID': this.#last }) }
    try {
      this.#restart()
      const response = await this.api.open(`v1/events?limit=${MOST}`, headers, this.#abort.signal)
      opened()
      this.on.connection('live', 'Live')
      await this.#read(response.body.pipeThrough(new TextDecoderStream()).getReader())
    } finally {
      clearTimeout(this.#timer)
    }
  }

  async #read(reader) {
    const parser = new Parser()
    let since = performance.now()
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      this.#restart()
      for (const event of parser.feed(part.value)) {
        this.#dispatch(event)
        if (performance.now() - since < SLICE) continue
        await new Promise(resolve => setTimeout(resolve))
        since = performance.now()
      }
    }
  }

  /** Restarts the timer that ends a silent connection. */
  #restart() {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#abort.abort(), SILENCE)
  }

  /** Dispatches one event; an error goes to the console and does not stop the following events. */
  #dispatch(event) {
    try {
      this.on[event.name]?.(JSON.parse(event.data))
    } catch (error) {
      console.error(event.name, error)
    }
    if (event.id) this.#last = event.id
  }
}

/** Splits text that arrives in parts into events. */
class Parser {
  #rest = ''

  /** Returns the events that are complete. */
  feed(text) {
    this.#rest += text
    const events = []
    let from = 0
    for (let end = this.#rest.indexOf('\n\n'); end >= 0; end = this.#rest.indexOf('\n\n', from)) {
      const event = read(this.#rest.slice(from, end))
      from = end + 2
      if (event.data) events.push(event)
    }
    this.#rest = this.#rest.slice(from)
    return events
  }
}

function read(block) {
  const event = { name: 'message', id: '', data: '' }
  for (const line of block.split('\n')) {
    const colon = line.indexOf(':')
    const value = line.slice(colon + 1).replace(/^ /, '')
    if (line.startsWith('data:')) event.data += value
    else if (line.startsWith('event:')) event.name = value
    else if (line.startsWith('id:')) event.id = value
  }
  return event
}
