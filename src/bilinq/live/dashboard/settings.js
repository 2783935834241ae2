// The target wait and the weights; the theory's prediction is shown before a change is applied.
import { announce, clock, duration, freshId, make, short, tabular, write } from './dom.js'

const NEEDS = 'applying them needs a key with scope fleet'
const FEW = 8 // up to so many weights are shown unfolded
const PAUSE = 250 // milliseconds from the last key stroke to the request

/** The settings in a card. Every reader may try them; only a key of the fleet may apply them. */
export class Settings {
  #names = []
  #given = null
  #inputs = new Map()
  #timer = 0
  #requests = 0
  #predicted = ''

  constructor(card, api, fleet) {
    Object.assign(this, { api, fleet })
    this.about = make('p', { class: 'about', text: 'Waiting for the service' })
    this.fields = make('div', { class: 'fields' })
    this.weights = make('details', { class: 'weights', ontoggle: () => this.#open() }, make('summary', { text: 'Weights' }))
    this.apply = make('button', { class: 'main', type: 'submit', text: 'Apply', disabled: true, hidden: !fleet })
    this.hint = fleet ? 'Change a setting to see what the theory predicts' : `You may try settings; ${NEEDS}`
    const reset = () => {
      this.#fill()
      write(this.message, this.hint)
    }
    this.reset = make('button', { class: 'plain', type: 'button', text: 'Reset', disabled: true, onclick: reset })
    this.message = make('p', { class: 'note', role: 'status', text: this.hint })
    this.form = make('form', { hidden: true, oninput: () => this.#changed(), onsubmit: event => this.#apply(event) },
      this.fields, this.weights, make('p', { class: 'buttons' }, this.apply, this.reset), this.message)
    this.prediction = make('div', { class: 'prediction' })
    card.append(this.about, this.form, this.prediction)
  }

  /** Shows the current settings of the service, unless some are being changed here. */
  update(names, state) {
    const given = JSON.stringify([names, state.weights, state.knobs])
    write(this.about, about(state))
    if (given === this.#given || this.#isChanged()) return
    const others = this.#given === null || names.join('\n') !== this.#names.join('\n')
    this.#given = given
    this.#names = names
    this.state = state
    this.form.hidden = !isAdjustable(state.knobs)
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

  /** Makes the fields of weights when they are unfolded: there may be many. */
  #open() {
    if (!this.weights.open || this.weights.querySelector('.fields')) return
    const fields = this.#names.map(name => this.#field(`weight ${name}`, name))
    this.weights.append(make('div', { class: 'fields small' }, ...fields))
    this.#names.forEach((name, i) => { this.#inputs.get(`weight ${name}`).value = this.state.weights[i] })
  }

  #field(name, label) {
    const id = freshId('setting')
    const rules = { type: 'number', min: '0.000001', max: '1000000000', step: 'any', inputmode: 'decimal' }
    const input = make('input', { id, ...rules, 'data-setting': name })
    this.#inputs.set(name, input)
    return make('div', {}, make('label', { for: id, text: label }), input)
  }

  /** Sets the fields to the values of the service. */
  #fill() {
    const { knobs: settings, weights } = this.state
    this.#inputs.get('target_wait').value = settings.target_wait ?? ''
    this.#inputs.get('target_wait').placeholder = settings.V === null ? '' : `not set; V is ${short(settings.V)}`
    if (this.#inputs.size > 1) this.#names.forEach((name, i) => { this.#inputs.get(`weight ${name}`).value = weights[i] })
    this.#clear()
  }

  /** Shows that nothing is changed. */
  #clear() {
    clearTimeout(this.#timer)
    this.#requests += 1
    this.apply.disabled = this.reset.disabled = true
    this.prediction.replaceChildren()
  }

  #isChanged() {
    return this.#given !== null && Object.keys(this.#update()).length > 0
  }

  /** Returns the settings that differ from those of the service, as the API accepts them. */
  #update() {
    const value = name => this.#inputs.get(name)?.valueAsNumber ?? NaN
    const update = {}
    const wait = value('target_wait')
    if (!Number.isNaN(wait) && wait !== this.state.knobs.target_wait) update.target_wait = wait
    const weights = this.#names.map((name, i) => [name, value(`weight ${name}`), this.state.weights[i]])
    const others = weights.filter(([, given, now]) => !Number.isNaN(given) && given !== now)
    if (others.length) update.weight = Object.fromEntries(others)
    return update
  }

  #changed() {
    const update = this.#update()
    if (Object.keys(update).length === 0) {
      this.#clear()
      write(this.message, this.hint)
      return
    }
    clearTimeout(this.#timer)
    this.#requests += 1
    this.apply.disabled = true
    this.reset.disabled = false
    if (this.form.checkValidity()) this.#timer = setTimeout(() => this.#predict(update, this.#requests), PAUSE)
    else write(this.message, 'Values must be numbers above zero')
  }

  async #predict(update, number) {
    write(this.message, 'Computing the prediction')
    try {
      const prediction = await this.api.post('v1/settings/preview', update)
      if (number !== this.#requests) return
      this.prediction.replaceChildren(...show(prediction))
      this.#predicted = JSON.stringify(update)
      this.apply.disabled = !this.fleet
      write(this.message, this.fleet ? 'Nothing is changed until you apply it' : `Nothing is changed; ${NEEDS}`)
    } catch (error) {
      if (number !== this.#requests) return
      this.prediction.replaceChildren()
      write(this.message, `No prediction: ${error.message}`)
    }
  }

  async #apply(event) {
    event.preventDefault()
    const update = this.#update()
    if (this.apply.disabled || JSON.stringify(update) !== this.#predicted) return
    this.apply.disabled = true
    try {
      const knobs = await this.api.patch('v1/settings', update)
      const weights = this.#names.map((name, i) => update.weight?.[name] ?? this.state.weights[i])
      this.state = { ...this.state, knobs, weights }
      this.#fill()
      write(this.message, `Applied at ${clock(Date.now() / 1000)}`)
      announce('Settings applied')
    } catch (error) {
      this.apply.disabled = false
      write(this.message, `Not applied: ${error.message}`)
    }
  }
}

/** A policy without settings has neither a target wait nor V. */
function isAdjustable(settings) {
  return settings.target_wait !== null || settings.V !== null
}

function about(state) {
  const { knobs: settings, V } = state
  if (!isAdjustable(settings)) return `The policy ${settings.policy} has no settings`
  const aim = settings.target_wait === null ? 'V is set' : `target wait ${duration(settings.target_wait)}`
  const idle = settings.work_conserving ? 'no server idles while a job waits' : 'jobs may wait for a better server'
  return `Now: ${aim}, V = ${short(V)}; ${idle}; exploration ${settings.exploration}`
}

/** Returns a prediction as elements: V, reward, queue and wait as far as known, a table by job class, and assumptions. */
function show(prediction) {
  const { job_classes, note } = prediction
  const facts = [['V', 'V', short], ['Reward per second', 'reward', short], ['Waiting jobs', 'queue', short],
    ['Mean wait', 'wait', duration]].flatMap(([name, key, format]) => change(name, prediction, key, format))
  const detailed = job_classes.some(row => row.wait_then !== null)
  return [make('h3', { text: facts.length ? 'What the theory predicts' : 'No prediction' }),
    ...(facts.length ? [make('dl', { class: 'facts' }, ...facts)] : []), ...(detailed ? [classes(job_classes)] : []),
    make('p', { class: 'note', text: note })]
}

/** Returns the name and the change of a value, or nothing if that is not predicted. */
function change(name, prediction, key, format) {
  const [now, then] = [prediction[`${key}_now`], prediction[`${key}_then`]]
  return then === null ? [] : [make('dt', { text: name }), make('dd', { text: arrow(now, then, format) })]
}

function arrow(now, then, format) {
  return format(now) === format(then) ? format(now) : `${format(now)} → ${format(then)}`
}

function classes(rows) {
  const body = make('tbody', {}, ...rows.map(row => {
    const queue = arrow(row.queue_now, row.queue_then, short)
    const wait = arrow(row.wait_now, row.wait_then, duration)
    const cells = [queue, wait, duration(row.measured_wait)].map(text => make('td', { text }))
    return make('tr', {}, make('th', { scope: 'row', text: row.name }), ...cells)
  }))
  return tabular('Predicted queues and waits', ['Job class', 'Queue', 'Wait', 'Measured wait'], body)
}
