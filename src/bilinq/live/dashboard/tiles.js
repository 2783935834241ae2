// The numbers of this moment.
import { make, write } from './dom.js'
import { count, duration, percent, short } from './words.js'

const RECENT = 10 // moments over which a rate is taken

/** The row of numbers at the top. */
export class Tiles {
  #tiles = new Map()

  constructor(list, history) {
    this.list = list
    this.history = history
  }

  update(state) {
    const { history } = this
    const now = name => history.latest(name)
    const target = state?.knobs.target_wait ?? history.layout.target_wait
    this.#set('Waiting', short(now('queued')), `${count(now('leased'), 'job')} being served`)
    this.#set('Reward per second', short(now('earned')), this.#ofBest())
    this.#set('Wait, 90 %', duration(now('wait_p90')), target ? `target ${duration(target)}` : 'no target')
    this.#set('Servers busy', `${short(now('busy'))} of ${short(now('busy') + now('idle'))}`, this.#share())
    this.#set('Finished per second', short(this.#rate('finished')), `${short(this.#rate('submitted'))} submitted`)
    const rival = history.rival
    if (!rival) return
    this.#set(`Rival: ${rival.name}`, short(now('rival earned')), `per second; ${count(rival.queued, 'job')} waiting`)
  }

  #ofBest() {
    const [earned, best] = [this.history.latest('earned'), this.history.latest('best')]
    if (Number.isNaN(best)) return 'best not known yet'
    const share = best > 0 && !Number.isNaN(earned)
    return share ? `${percent(earned / best)} of the best, ${short(best)}` : `best ${short(best)}`
  }

  #share() {
    const [busy, idle] = [this.history.latest('busy'), this.history.latest('idle')]
    return busy + idle ? percent(busy / (busy + idle)) : 'none is there'
  }

  #rate(name) {
    const { history } = this
    const first = Math.max(history.start, history.last - RECENT)
    let total = 0
    for (let i = first + 1; i < history.end; i += 1) total += history.column(name)[i]
    return history.size > 1 ? total / (history.at[history.last] - history.at[first]) : NaN
  }

  #set(name, value, note) {
    if (!this.#tiles.has(name)) {
      const parts = [make('dt', { text: name }), make('dd', { class: 'value' }), make('dd', { class: 'note' })]
      this.#tiles.set(name, parts)
      this.list.append(make('div', {}, ...parts))
    }
    const [, shown, small] = this.#tiles.get(name)
    write(shown, value)
    write(small, note)
  }
}
