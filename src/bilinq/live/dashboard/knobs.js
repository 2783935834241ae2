// The target wait and the weights, to be turned after a look at what the theory predicts.
import { freshId, make, say, write } from './dom.js'
import { show } from './prediction.js'
import { clock, duration, short } from './words.js'

const NEEDS = 'applying them needs a key with scope admin'
const FEW = 8 // classes whose weights are shown without being asked for
const PAUSE = 250 // milliseconds after the last key before the service is asked

/** The knobs in a card. Whoever may read may try them; only an admin may apply. */
export class Knobs {
  #names = []
  #given = null
  #inputs = new Map()
  #timer = 0
  #asked = 0
  #predicted = ''

  constructor(card, api, admin) {
    Object.assign(this, { api, admin })
    this.about = make('p', { class: 'about', text: 'Waiting for the service' })
    this.fields = make('div', { class: 'fields' })
    this.weights = make('details', { class: 'weights', ontoggle: () => this.#open() }, make('summary', { text: 'Weights' }))
    this.apply = make('button', { class: 'main', type: 'submit', text: 'Apply', disabled: true, hidden: !admin })
    this.hint = admin ? 'Turn a knob to see what the theory predicts' : `You may try knobs; ${NEEDS}`
    const back = () => {
      this.#fill()
      write(this.message, this.hint)
    }
    this.back = make('button', { class: 'plain', type: 'button', text: 'Put back', disabled: true, onclick: back })
    this.message = make('p', { class: 'note', role: 'status', text: this.hint })
    this.form = make('form', { hidden: true, oninput: () => this.#changed(), onsubmit: event => this.#apply(event) },
      this.fields, this.weights, make('p', { class: 'buttons' }, this.apply, this.back), this.message)
    this.prediction = make('div', { class: 'prediction' })
    card.append(this.about, this.form, this.prediction)
  }

  /** Takes in what the knobs are now. */
  update(names, state) {
    const given = JSON.stringify([names, state.weights, state.knobs])
    write(this.about, about(state))
    if (given === this.#given || this.#touched()) return
    const others = this.#given === null || names.join('\n') !== this.#names.join('\n')
    this.#given = given
    this.#names = names
    this.state = state
    this.form.hidden = state.knobs.policy === 'first-come'
    if (others) this.#build()
    this.#fill()
  }

  #build() {
    const wait = this.#field('target_wait', 'Target wait, seconds')
    this.fields.replaceChildren(wait)
    this.#inputs = new Map([['target_wait', this.#inputs.get('target_wait')]])
    this.weights.querySelector('.fields')?.remove()
    this.weights.open = this.#names.length <= FEW
    if (this.weights.open) this.#open()
  }

  /** Makes the fields of weights when they are to be seen: there may be many. */
  #open() {
    if (!this.weights.open || this.weights.querySelector('.fields')) return
    const fields = this.#names.map(name => this.#field(`weight ${name}`, name))
    this.weights.append(make('div', { class: 'fields small' }, ...fields))
    this.#names.forEach((name, i) => { this.#inputs.get(`weight ${name}`).value = this.state.weights[i] })
  }

  #field(name, label) {
    const id = freshId('knob')
    const rules = { type: 'number', min: '0.000001', max: '1000000000', step: 'any', inputmode: 'decimal' }
    const input = make('input', { id, ...rules, 'data-knob': name })
    this.#inputs.set(name, input)
    return make('div', {}, make('label', { for: id, text: label }), input)
  }

  /** Puts the values of the service into the fields. */
  #fill() {
    const { knobs, weights } = this.state
    this.#inputs.get('target_wait').value = knobs.target_wait ?? ''
    this.#inputs.get('target_wait').placeholder = knobs.V === null ? '' : `none: V is ${short(knobs.V)}`
    if (this.#inputs.size > 1) this.#names.forEach((name, i) => { this.#inputs.get(`weight ${name}`).value = weights[i] })
    this.#rest()
  }

  /** Shows that nothing is turned. */
  #rest() {
    clearTimeout(this.#timer)
    this.#asked += 1
    this.apply.disabled = this.back.disabled = true
    this.prediction.replaceChildren()
  }

  #touched() {
    return this.#given !== null && Object.keys(this.#turn()).length > 0
  }

  /** Returns the knobs that differ from those of the service, as the API takes them. */
  #turn() {
    const value = name => this.#inputs.get(name)?.valueAsNumber ?? NaN
    const turn = {}
    const wait = value('target_wait')
    if (!Number.isNaN(wait) && wait !== this.state.knobs.target_wait) turn.target_wait = wait
    const weights = this.#names.map((name, i) => [name, value(`weight ${name}`), this.state.weights[i]])
    const others = weights.filter(([, given, now]) => !Number.isNaN(given) && given !== now)
    if (others.length) turn.weight = Object.fromEntries(others)
    return turn
  }

  #changed() {
    const turn = this.#turn()
    if (Object.keys(turn).length === 0) {
      this.#rest()
      write(this.message, this.hint)
      return
    }
    clearTimeout(this.#timer)
    this.#asked += 1
    this.apply.disabled = true
    this.back.disabled = false
    if (this.form.checkValidity()) this.#timer = setTimeout(() => this.#predict(turn, this.#asked), PAUSE)
    else write(this.message, 'Values must be numbers above zero')
  }

  async #predict(turn, number) {
    write(this.message, 'Asking for a prediction')
    try {
      const prediction = await this.api.post('v1/settings/preview', turn)
      if (number !== this.#asked) return
      this.prediction.replaceChildren(...show(prediction))
      this.#predicted = JSON.stringify(turn)
      this.apply.disabled = !this.admin
      write(this.message, this.admin ? 'Nothing is changed until you apply it' : `Nothing is changed; ${NEEDS}`)
    } catch (error) {
      if (number !== this.#asked) return
      this.prediction.replaceChildren()
      write(this.message, `No: ${error.message}`)
    }
  }

  async #apply(event) {
    event.preventDefault()
    const turn = this.#turn()
    if (this.apply.disabled || JSON.stringify(turn) !== this.#predicted) return
    this.apply.disabled = true
    try {
      const knobs = await this.api.patch('v1/settings', turn)
      const weights = this.#names.map((name, i) => turn.weight?.[name] ?? this.state.weights[i])
      this.state = { ...this.state, knobs, weights }
      this.#fill()
      write(this.message, `Applied at ${clock(Date.now() / 1000)}`)
      say('Applied')
    } catch (error) {
      this.apply.disabled = false
      write(this.message, `Not applied: ${error.message}`)
    }
  }
}

function about(state) {
  const { knobs, V } = state
  if (knobs.policy === 'first-come') return 'First come, first served: there is nothing to turn'
  const aim = knobs.target_wait === null ? 'V is given' : `target wait ${duration(knobs.target_wait)}`
  const idle = knobs.work_conserving ? 'no server idles while a job waits' : 'jobs may wait for a better server'
  return `Now: ${aim}, V = ${short(V)}; ${idle}; exploration ${knobs.exploration}`
}
