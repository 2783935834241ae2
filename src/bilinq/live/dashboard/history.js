// What is known of the last hour: a column of numbers for each thing, all in step with the column of times.

const ROOM = 3600
const MINUTE = 60
const BUSY = 10 // seconds over which the share of busy servers is taken
const GAP = 8 // shortest gap, seconds

/** The moments that came, oldest first, in `at` and in every column from `start` to `end`; NaN is not known. */
export class History {
  start = 0
  end = 0
  at = new Float64Array(2 * ROOM)
  layout = { job_classes: [], server_classes: [], target_wait: null, reward_low: 0, reward_high: 1, version: -1 }
  rival = null
  #columns = new Map()
  #begun = ''
  #number = 0

  get size() {
    return this.end - this.start
  }

  get last() {
    return this.end - 1
  }

  /** Returns the column of this name; one that nothing was ever put into has no numbers. */
  column(name) {
    if (!this.#columns.has(name)) this.#columns.set(name, new Float64Array(2 * ROOM).fill(NaN))
    return this.#columns.get(name)
  }

  /** Returns the latest number of a column. */
  latest(name) {
    return this.size ? this.column(name)[this.last] : NaN
  }

  /** Names the classes that moments are about from now on. */
  name(layout) {
    this.layout = layout
    this.column('target').fill(layout.target_wait ?? NaN)
  }

  /** Takes in a moment; false if it was known before. If the service's clock was set back, all before is forgotten. */
  add(moment) {
    const [begun, number] = moment.id.split('-')
    if (begun === this.#begun && Number(number) <= this.#number) return false
    this.#begun = begun
    this.#number = Number(number)
    if (this.size && moment.at <= this.at[this.last]) this.start = this.end
    if (this.end === this.at.length) this.#moveDown()
    this.at[this.end] = moment.at
    this.#put(moment)
    this.end += 1
    this.start = Math.max(this.start, this.end - ROOM)
    return true
  }

  /** Seconds without a moment that count as a gap. */
  get gap() {
    return Math.max(GAP, (4 * (this.at[this.last] - this.at[this.start])) / this.size)
  }

  /** Returns the place of the first moment at or after a time. */
  place(time) {
    let [low, high] = [this.start, this.end]
    while (low < high) {
      const middle = (low + high) >> 1
      if (this.at[middle] < time) low = middle + 1
      else high = middle
    }
    return low
  }

  /** Returns the place of the moment nearest to a time, or -1 if there is none. */
  nearest(time) {
    const next = Math.min(this.place(time), this.last)
    const before = next - 1
    return before >= this.start && time - this.at[before] < this.at[next] - time ? before : this.size ? next : -1
  }

  #put(moment) {
    const { job_classes: jobs, server_classes: servers } = this.layout
    const set = (name, value) => { this.column(name)[this.end] = value ?? NaN }
    jobs.forEach((name, i) => set(`queued ${name}`, moment.queued[i]))
    servers.forEach((name, j) => {
      set(`serving ${name}`, moment.busy[j])
      set(`there ${name}`, moment.busy[j] + moment.idle[j])
      set(`busy ${name}`, this.#recent(`serving ${name}`, BUSY) / this.#recent(`there ${name}`, BUSY))
    })
    for (const name of ['wait_p50', 'wait_p90', 'wait_p99', 'best', 'earned']) set(name, moment[name])
    for (const name of ['queued', 'leased', 'submitted', 'finished', 'busy', 'idle']) set(name, sum(moment[name]))
    this.rival = moment.rival
    set('target', this.layout.target_wait)
    set('rival reward', moment.rival?.reward)
    set('rival queued', moment.rival?.queued)
    set('rival wait_p90', moment.rival?.wait_p90)
    set('rival earned', moment.rival && this.#perSecond('rival reward'))
  }

  /** Returns the sum of a column over the last seconds, with the moment that is just put. */
  #recent(name, seconds) {
    const column = this.column(name)
    let total = 0
    for (let i = this.end; i >= this.start && this.at[this.end] - this.at[i] < seconds; i -= 1) total += column[i]
    return total
  }

  /** Returns what came per second in the last minute, as far as it is known; a moment has what came since the one before. */
  #perSecond(name) {
    const column = this.column(name)
    const now = this.at[this.end]
    let total = 0
    let i = this.end
    for (; i > this.start && now - this.at[i] < MINUTE && !Number.isNaN(column[i]); i -= 1) total += column[i]
    return i < this.end ? total / (now - this.at[i]) : null
  }

  #moveDown() {
    for (const column of [this.at, ...this.#columns.values()]) {
      column.copyWithin(0, this.start, this.end)
      column.fill(NaN, this.size)
    }
    this.end = this.size
    this.start = 0
  }
}

/** Returns the sum of a list. */
export function sum(list) {
  return list.reduce((total, value) => total + value, 0)
}
