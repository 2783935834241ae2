// All that is shown, and what each event of the service changes in it.
import { Chart, Cursor } from './chart.js'
import { byId, count, duration, exact, make, percent, short, write } from './dom.js'
import { Painter, Theme } from './drawing.js'
import { Fleet } from './fleet.js'
import { Heatmap } from './heatmap.js'
import { History } from './history.js'
import { JobList } from './joblist.js'
import { Jobs } from './jobs.js'
import { Palette } from './lines.js'
import { Dead, Leases } from './lists.js'
import { Settings } from './settings.js'
import { Shadow } from './shadow.js'
import { MatrixTable, TimeTable } from './table.js'

const RECENT = 10 // samples over which a rate is averaged
const WORST = 5 // queues that are drawn beside the total, if there are too many for a line each
const EMPTY = 'No data yet'
const HELD = 'Paused or held servers'
const withError = format => (value, width) => `${format(value)} ± ${format(width)}`

/** The board; an admin may change jobs and hold servers, and a key of the fleet change settings. */
export class Board {
  history = new History()
  painter = new Painter()
  cursor = new Cursor()
  window = { seconds: 300 }
  state = null
  allocated = 'rate'
  #queues = new Palette(WORST)
  #servers = new Palette()
  #frame = 0

  constructor(api, { admin, fleet, namespaces }) {
    this.theme = new Theme(() => this.#redraw())
    this.jobs = new Jobs(api)
    const open = id => this.jobs.open(id)
    this.tiles = new Tiles(byId('tiles'), this.history)
    this.charts = this.#charts()
    this.tables = this.charts.map(chart => new TimeTable(chart.card, this.painter, this.history, () => chart.series()))
    this.allocation = new Heatmap(byId('allocation'), this, { ramp: 'share', read: short })
    this.learnt = new Heatmap(byId('learnt'), this, { ramp: 'worth', read: withError(short) })
    this.shares = new MatrixTable(byId('allocation'), this.painter, exact)
    this.rewards = new MatrixTable(byId('learnt'), this.painter, withError(exact))
    byId('settings').hidden = namespaces !== null
    this.settings = new Settings(byId('settings'), api, fleet)
    this.shadow = new Shadow(byId('shadow'))
    this.dead = new Dead(byId('dead'), api, { admin, open })
    this.list = new JobList(byId('jobs'), api, { admin, open })
    this.fleet = new Fleet(byId('fleet'), api, { admin, loaded: servers => {
      this.recent.show()
      this.tiles.held(servers)
    } })
    this.recent = new Leases(byId('leases'), open, id => this.fleet.name(id))
    onChoice('window', value => this.#show(Number(value)))
    onChoice('allocated', value => {
      this.allocated = value
      if (this.state) this.view(this.state)
    })
  }

  /** Sets classes, the target wait and the range of rewards. */
  layout(layout) {
    this.history.name(layout)
  }

  /** Adds a sample; the board is updated in the next frame, once for all samples since. */
  sample(sample) {
    if (!this.history.add(sample) || this.#frame) return
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0
      this.tiles.update(this.state)
      for (const table of this.tables) table.update()
      this.#redraw()
    })
  }

  /** Shows the allocation, the learnt rewards and the settings. */
  view(state) {
    this.state = state
    const { job_classes: rows, server_classes: columns, reward_low, reward_high } = this.history.layout
    const shares = state[this.allocated]
    const most = Math.max(0, ...shares.flat()) || 1
    const [low, high] = [Math.min(...state.mean.flat()), Math.max(...state.mean.flat())]
    const doubt = (reward_high - reward_low) / 4
    const allocation = { rows, columns, values: shares, widths: null, low: 0, high: most }
    const learnt = { rows, columns, values: state.mean, widths: state.width, low, high, doubt }
    this.allocation.show(allocation, EMPTY)
    this.learnt.show(learnt, state.knobs.learns ? EMPTY : `The policy ${state.knobs.policy} does not learn rewards`)
    this.shares.show(allocation)
    this.rewards.show(learnt)
    write(byId('policy'), `Policy: ${state.knobs.policy}`)
    byId('policy').hidden = false
    this.settings.update(rows, state)
    this.shadow.show(state, reward_high - reward_low)
    this.dead.update(state)
    this.list.classes(rows)
    this.fleet.update(state)
  }

  /** Shows leases that were granted or ended recently. */
  leases({ leases }) {
    this.recent.show(leases)
    this.jobs.refresh()
  }

  #charts() {
    const layout = () => this.history.layout
    const baseline = (column, what) => {
      const one = this.history.baseline
      return one ? [{ column, label: `baseline: ${one.name}${what}`, colour: 'c2' }] : []
    }
    return [
      new Chart(byId('queues'), this, {
        format: short, series: () => [
          { column: 'queued', label: 'all', colour: 'ink', wide: true },
          ...this.#queues.series(this.history, 'queued', layout().job_classes)] }),
      new Chart(byId('reward'), this, { format: short, series: () => [
        { column: 'earned', label: 'earned', colour: 'c1' },
        { column: 'best', label: 'best possible', colour: 'ink', dashed: true }, ...baseline('baseline earned', '')] }),
      new Chart(byId('waits'), this, { format: duration, series: () => [
        { column: 'wait_mean', label: 'mean', colour: 'c1', wide: true },
        { column: 'target', label: 'target of the mean', colour: 'ink', dashed: true },
        { column: 'wait_p50', label: 'p50', colour: 'c2' }, { column: 'wait_p90', label: 'p90', colour: 'c3' },
        { column: 'wait_p99', label: 'p99', colour: 'c7' }, ...baseline('baseline wait_p90', ', p90')] }),
      new Chart(byId('servers'), this, {
        format: percent, top: 1, series: () => this.#servers.series(this.history, 'busy', layout().server_classes) }),
    ]
  }

  #show(seconds) {
    this.window.seconds = seconds
    this.#redraw()
  }

  #redraw() {
    for (const view of [...this.charts, this.allocation, this.learnt]) this.painter.ask(view)
  }
}

/** Calls `chosen` with the chosen value of a group of radio buttons, now and whenever it changes. */
function onChoice(id, chosen) {
  for (const choice of byId(id).querySelectorAll('input')) {
    choice.addEventListener('change', () => chosen(choice.value))
    if (choice.checked) chosen(choice.value)
  }
}

/** The row of numbers at the top. */
class Tiles {
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
    const long = now('wait_p90') >= 0 ? `nine of ten below ${duration(now('wait_p90'))}` : 'no job has started'
    this.#set('Mean wait', duration(now('wait_mean')), target ? `target ${duration(target)}; ${long}` : long)
    this.#set('Servers busy', `${short(now('busy'))} of ${short(now('busy') + now('idle'))}`, this.#share())
    this.#set('Finished per second', short(this.#rate('finished')), `${short(this.#rate('submitted'))} submitted`)
    const { baseline } = history
    if (state?.awaited) this.#set('Rewards awaited', short(state.awaited), 'jobs that are done without a reward')
    else this.#remove('Rewards awaited')
    if (state?.unserved) this.#set('Unserved', short(state.unserved), 'jobs that wait for servers that are not there')
    else this.#remove('Unserved')
    if (!baseline) return
    const note = `reward per second; ${count(baseline.queued, 'job')} waiting`
    this.#set(`Baseline: ${baseline.name}`, short(now('baseline earned')), note)
  }

  /** Shows how many servers get no jobs, and why. */
  held(servers) {
    const [paused, all] = [servers.filter(one => one.held === 'paused').length, servers.filter(one => one.held).length]
    if (!servers.length) return this.#remove(HELD)
    this.#set(HELD, `${short(all)} of ${short(servers.length)}`, `${paused} paused after failures, ${all - paused} held by operators`)
  }

  #ofBest() {
    const [earned, best] = [this.history.latest('earned'), this.history.latest('best')]
    if (Number.isNaN(best)) return 'best not known yet'
    if (earned > best) return `above the best for this load, ${short(best)}`
    const share = best > 0 && !Number.isNaN(earned)
    return share ? `${percent(earned / best)} of the best, ${short(best)}` : `best ${short(best)}`
  }

  #share() {
    const [busy, idle] = [this.history.latest('busy'), this.history.latest('idle')]
    return busy + idle ? percent(busy / (busy + idle)) : 'no server is connected'
  }

  #rate(name) {
    const { history } = this
    const first = Math.max(history.start, history.last - RECENT)
    let total = 0
    for (let i = first + 1; i < history.end; i += 1) total += history.column(name)[i]
    return history.size > 1 ? total / (history.at[history.last] - history.at[first]) : NaN
  }

  #remove(name) {
    if (this.#tiles.has(name)) this.#tiles.get(name)[0].parentNode.remove()
    this.#tiles.delete(name)
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
