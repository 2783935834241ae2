// A second policy beside the first: what it would have earned, with its interval.
import { count, make, percent, short, write } from './dom.js'

const STATES = { starting: 'It learns from the log', failed: 'It has failed and is switched off', on: '' }
const LEAST = 0.05 // part of the range of rewards that the axis shows at least on both sides
const WIDE = 320 // units of the drawing
const [TOP, MIDDLE, LOW] = [10, 22, 38]

/** The card of the shadow; hidden as long as there is none. */
export class Shadow {
  constructor(card) {
    this.card = card
    this.about = make('p', { class: 'about' })
    this.drawing = make('div', { class: 'interval' })
    this.facts = make('dl', { class: 'facts' })
    this.notes = make('div')
    card.append(this.about, this.drawing, this.facts, this.notes)
  }

  /** Shows the shadow of a state; `range` is that of rewards. */
  show({ shadow, knobs }, range) {
    this.card.hidden = !shadow
    if (!shadow) return
    write(this.about, `${shadow.policy} decides beside ${knobs.policy}, for the same jobs; nothing depends on it`)
    const given = JSON.stringify(shadow)
    if (given === this.given) return
    this.given = given
    this.drawing.replaceChildren(...(shadow.gain ? [axis(shadow.gain, LEAST * range)] : []))
    this.facts.replaceChildren(...facts(shadow).flatMap(([name, text]) =>
      [make('dt', { text: name }), make('dd', { text })]))
    const words = [STATES[shadow.state], shadow.error, ...shadow.notes].filter(Boolean)
    this.notes.replaceChildren(...words.map(text => make('p', { class: 'note', text })))
  }
}

function facts({ gain, earned, estimate, agreement, choices, compared, predicted_gain: predicted }) {
  const known = gain ? [
    ['Reward of a service', `${short(estimate.mean)} instead of ${short(earned.mean)}`],
    ['Difference', `${signed(gain.mean)}, 95 % interval ${signed(gain.low)} to ${signed(gain.high)}`],
  ] : []
  const told = predicted === null ? 'not known' : `${signed(predicted)} over all choices; predicted, not measured`
  return [...known, ['Same server class', percent(agreement)],
    ['Compared', `${short(compared)} of ${count(choices, 'choice')}`], ['By learnt rewards', told]]
}

const signed = value => (value > 0 ? `+${short(value)}` : short(value).replace('-', '−'))

/** Returns a drawing of an interval beside zero; the axis reaches at least to `least`. */
function axis({ mean, low, high }, least) {
  const most = 1.15 * Math.max(Math.abs(low), Math.abs(high), least)
  const x = value => Number((WIDE / 2 * (1 + value / most)).toFixed(1))
  const kind = low > 0 ? 'better' : high < 0 ? 'worse' : 'open'
  const words = `Difference ${signed(mean)}, 95 % interval from ${signed(low)} to ${signed(high)}`
  const text = (at, y, content, anchor = 'middle') => svg('text', { x: at, y, 'text-anchor': anchor }, content)
  return svg('svg', { viewBox: `0 0 ${WIDE} 46`, role: 'img', 'aria-label': words, class: kind },
    svg('line', { x1: 0, x2: WIDE, y1: MIDDLE, y2: MIDDLE, class: 'rule' }),
    svg('line', { x1: WIDE / 2, x2: WIDE / 2, y1: TOP, y2: 34, class: 'zero' }),
    svg('line', { x1: x(low), x2: x(high), y1: MIDDLE, y2: MIDDLE, class: 'range' }),
    svg('circle', { cx: x(mean), cy: MIDDLE, r: 4 }),
    text(WIDE / 2, LOW + 7, 'same reward'), text(0, LOW + 7, 'worse', 'start'), text(WIDE, LOW + 7, 'better', 'end'))
}

function svg(tag, given, ...inside) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag)
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, value)
  element.append(...inside)
  return element
}
