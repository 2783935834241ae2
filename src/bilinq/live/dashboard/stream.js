// The service's events, without end: server-sent events over fetch, since EventSource cannot send a key.

const SILENCE = 40_000 // the service says something every 15 s
const MOST = 3600 // moments to be told at most
const FIRST_PAUSE = 500
const LONGEST_PAUSE = 10_000
const SLICE = 10 // milliseconds of work before the page may draw again

/** Calls `on.<event>(data)` for each event, and goes on after the last moment seen when a connection is lost.
 *
 * `on.connection(state, words)` tells how it is: "connecting", "live", "lost", or "refused", after which nothing follows. */
export class Stream {
  #last = null
  #abort = null
  #watch = 0
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
      await this.#rest(pause * (0.75 + 0.5 * Math.random()))
      pause = Math.min(2 * pause, LONGEST_PAUSE)
    }
  }

  /** Waits, unless there is reason to believe that the service can be reached again. */
  #rest(milliseconds) {
    const next = milliseconds < 1000 ? '' : `; next try in ${Math.round(milliseconds / 1000)} s`
    this.on.connection('lost', `Connection lost${next}`)
    return new Promise(resolve => {
      this.#wake = resolve
      setTimeout(resolve, milliseconds)
    })
  }

  /** Hands on events until the connection ends or is silent for too long. */
  async #follow(opened) {
    this.#abort = new AbortController()
    const headers = { Accept: 'text/event-stream', ...(this.#last && { 'Last-Event-ID': this.#last }) }
    try {
      this.#listen()
      const answer = await this.api.open(`v1/events?limit=${MOST}`, headers, this.#abort.signal)
      opened()
      this.on.connection('live', 'Live')
      await this.#read(answer.body.pipeThrough(new TextDecoderStream()).getReader())
    } finally {
      clearTimeout(this.#watch)
    }
  }

  async #read(reader) {
    const parser = new Parser()
    let since = performance.now()
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      this.#listen()
      for (const event of parser.feed(part.value)) {
        this.#hand(event)
        if (performance.now() - since < SLICE) continue
        await new Promise(resolve => setTimeout(resolve))
        since = performance.now()
      }
    }
  }

  /** Gives the service some time to say the next thing. */
  #listen() {
    clearTimeout(this.#watch)
    this.#watch = setTimeout(() => this.#abort.abort(), SILENCE)
  }

  /** Hands on one event; what fails is told on the console, and the next events come all the same. */
  #hand(event) {
    try {
      this.on[event.name]?.(JSON.parse(event.data))
    } catch (error) {
      console.error(event.name, error)
    }
    if (event.id) this.#last = event.id
  }
}

/** Cuts text that comes in parts into events. */
export class Parser {
  #rest = ''

  /** Returns the events that are whole now. */
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
