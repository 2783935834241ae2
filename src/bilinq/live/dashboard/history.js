// The last hour: a column of numbers for each quantity, in step with the column of times.

const ROOM = 3600
const MINUTE = 60
const BUSY = 10 // seconds over which the share of busy servers is averaged
const GAP = 8 // shortest gap in seconds

/** The samples received, oldest first, in `at` and in every column from `start` to `end`; NaN is unknown. */
export class History {
  start = 0
  end = 0
  at = new Float64Array(2 * ROOM)
  layout = { job_classes: [], server_classes: [], target_wait: null, reward_low: 0, reward_high: 1, version: -1 }
  baseline = null
  #columns = new Map()
  #run = ''
  #number = 0

  get size() {
    return this.end - this.start
  }

  get last() {
    return this.end - 1
  }

  /** Returns the column of this name; a new one contains only NaN. */
  column(name) {
    if (!this.#columns.has(name)) this.#columns.set(name, new Float64Array(2 * ROOM).fill(NaN))
    return this.#columns.get(name)
  }

  /** Returns the latest number of a column. */
  latest(name) {
    return this.size ? this.column(name)[this.last] : NaN
  }

  /** Sets the classes of the following samples. */
  name(layout) {
    this.layout = layout
    this.column('target').fill(layout.target_wait ?? NaN)
  }

  /** Adds a sample; returns false if it is known. If the service's clock was set back, all earlier ones are dropped. */
  add(sample) {
    const [run, number] = sample.id.split('-')
    if (run === this.#run && Number(number) <= this.#number) return false
    this.#run = run
    this.#number = Number(number)
    if (this.size && sample.at <= this.at[this.last]) this.start = this.end
    if (this.end === this.at.length) this.#moveDown()
    this.at[this.end] = sample.at
    this.#put(sample)
    this.end += 1
    this.start = Math.max(this.start, this.end - ROOM)
    return true
  }

  /** Seconds without a sample that count as a gap. */
  get gap() {
    return Math.max(GAP, (4 * (this.at[this.last] - this.at[this.start])) / this.size)
  }

  /** Returns the index of the first sample at or after a time. */
  place(time) {
    let [low, high] = [this.start, this.end]
    while (low < high) {
      const middle = (low + high) >> 1
      if (this.at[middle] < time) low = middle + 1
      else high = middle
    }
    return low
  }

  /** Returns the index of the sample nearest to a time, or -1 if there is none. */
  nearest(time) {
    const next = Math.min(this.place(time), this.last)
    const before = next - 1
    return before >= this.start && time - this.at[before] < this.at[next] - time ? before : this.size ? next : -1
  }

  #put(sample) {
    const { job_classes: jobs, server_classes: servers } = this.layout
    const set = (name, value) => { this.column(name)[this.end] = value ?? NaN }
    jobs.forEach((name, i) => set(`queued ${name}`, sample.queued[i]))
    servers.forEach((name, j) => {
      set(`serving ${name}`, sample.busy[j])
      set(`there ${name}`, sample.busy[j] + sample.idle[j])
      set(`busy ${name}`, this.#recent(`serving ${name}`, BUSY) / this.#recent(`there ${name}`, BUSY))
    })
    for (const name of ['wait_mean', 'wait_p50', 'wait_p90', 'wait_p99', 'best', 'earned']) set(name, sample[name])
    for (const name of ['queued', 'leased', 'submitted', 'finished', 'busy', 'idle']) set(name, sum(sample[name]))
    this.baseline = sample.rival
    set('target', this.layout.target_wait)
    set('baseline reward', sample.rival?.reward)
    set('baseline queued', sample.rival?.queued)
    set('baseline wait_p90', sample.rival?.wait_p90)
    set('baseline earned', sample.rival && this.#perSecond('baseline reward'))
  }

  /** Returns the sum of a column over the last seconds, including the sample that is being added. */
  #recent(name, seconds) {
    const column = this.column(name)
    let total = 0
    for (let i = this.end; i >= this.start && this.at[this.end] - this.at[i] < seconds; i -= 1) total += column[i]
    return total
  }

  /** Returns the rate per second over the last minute, as far as it is known; a sample counts from the one before. */
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
function sum(list) {
  return list.reduce((total, value) => total + value, 0)
}
