// Everything that is shown, and what each event of the service changes in it.
import { Chart } from './chart.js'
import { Cursor } from './cursor.js'
import { Dead } from './dead.js'
import { byId } from './dom.js'
import { Heatmap } from './heatmap.js'
import { History } from './history.js'
import { Jobs } from './jobs.js'
import { Knobs } from './knobs.js'
import { Leases } from './leases.js'
import { Painter } from './painter.js'
import { Choice } from './series.js'
import { MatrixTable, TimeTable } from './table.js'
import { Theme } from './theme.js'
import { Tiles } from './tiles.js'
import { duration, exact, percent, short } from './words.js'

const LEARNS_NOTHING = 'This policy does not learn, so there is nothing to show'
const plain = value => exact(value)
const sure = (value, width) => `${exact(value)} ± ${exact(width)}`

/** The board for the holder of a key. */
export class Board {
  history = new History()
  painter = new Painter()
  cursor = new Cursor()
  window = { seconds: 300 }
  state = null
  allocated = 'rate'
  #queues = new Choice()
  #servers = new Choice()
  #frame = 0

  constructor(api, admin) {
    this.theme = new Theme(() => this.#redraw())
    this.jobs = new Jobs(api)
    const open = id => this.jobs.open(id)
    this.tiles = new Tiles(byId('tiles'), this.history)
    this.charts = this.#charts()
    this.tables = this.charts.map(chart => new TimeTable(chart.card, this.painter, this.history, () => chart.series()))
    this.allocation = new Heatmap(byId('allocation'), this, { ramp: 'share', read: plain })
    this.learnt = new Heatmap(byId('learnt'), this, { ramp: 'worth', read: sure })
    this.shares = new MatrixTable(byId('allocation'), this.painter, plain)
    this.rewards = new MatrixTable(byId('learnt'), this.painter, sure)
    this.knobs = new Knobs(byId('knobs'), api, admin)
    this.dead = new Dead(byId('dead'), api, { admin, open })
    this.recent = new Leases(byId('leases'), open)
    onChoice('window', value => this.#show(Number(value)))
    onChoice('allocated', value => {
      this.allocated = value
      if (this.state) this.view(this.state)
    })
  }

  /** Classes, the target and the range of rewards. */
  layout(layout) {
    this.history.name(layout)
  }

  /** One more moment; what is shown follows in the next frame, once for all moments that came. */
  moment(moment) {
    if (!this.history.add(moment) || this.#frame) return
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0
      this.tiles.update(this.state)
      for (const table of this.tables) table.update()
      this.#redraw()
    })
  }

  /** The allocation, what was learnt, and the knobs. */
  view(state) {
    this.state = state
    const { job_classes: rows, server_classes: columns, reward_low, reward_high } = this.history.layout
    const shares = state[this.allocated]
    const most = Math.max(1e-9, ...shares.flat())
    const [low, high] = [Math.min(...state.mean.flat()), Math.max(...state.mean.flat())]
    const doubt = (reward_high - reward_low) / 4
    const allocation = { rows, columns, values: shares, widths: null, low: 0, high: most }
    const learnt = { rows, columns, values: state.mean, widths: state.width, low, high, doubt }
    this.allocation.show(allocation, 'Nothing yet')
    this.learnt.show(learnt, state.knobs.policy === 'first-come' ? LEARNS_NOTHING : 'Nothing yet')
    this.shares.show(allocation)
    this.rewards.show(learnt)
    this.knobs.update(rows, state)
    this.dead.update(state)
  }

  /** Leases that were granted or ended lately. */
  leases({ leases }) {
    this.recent.show(leases)
    this.jobs.refresh()
  }

  #charts() {
    const layout = () => this.history.layout
    const rival = (column, what) => {
      const one = this.history.rival
      return one ? [{ column, label: one.name + what, colour: 'c2' }] : []
    }
    const wait = (column, label, colour) => ({ column, label, colour })
    return [
      new Chart(byId('queues'), this, {
        format: short, series: () => this.#queues.series(this.history, 'queued', layout().job_classes) }),
      new Chart(byId('reward'), this, { format: short, series: () => [
        { column: 'earned', label: 'earned', colour: 'c1' },
        { column: 'best', label: 'best the model sees', colour: 'ink', dashed: true }, ...rival('rival earned', '')] }),
      new Chart(byId('waits'), this, { format: duration, series: () => [
        wait('wait_p50', '50 %', 'c6'), wait('wait_p90', '90 %', 'c1'), wait('wait_p99', '99 %', 'c7'),
        { column: 'target', label: 'target', colour: 'ink', dashed: true }, ...rival('rival wait_p90', ', 90 %')] }),
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

/** Calls `chosen` with the value that is chosen in a group of radio buttons, now and whenever it changes. */
function onChoice(id, chosen) {
  for (const choice of byId(id).querySelectorAll('input')) {
    choice.addEventListener('change', () => chosen(choice.value))
    if (choice.checked) chosen(choice.value)
  }
}
