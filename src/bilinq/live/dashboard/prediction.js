// What the theory says about a turn of the knobs.
import { make, tabular } from './dom.js'
import { duration, short } from './words.js'

/** Returns a prediction as elements: the sum of it, the table, and what it rests on. */
export function show(prediction) {
  const { V_now, V_then, reward_now, reward_then, job_classes, note } = prediction
  const facts = [...change('V', V_now, V_then), ...change('Reward per second', reward_now, reward_then)]
  return [make('h3', { text: 'What the theory predicts' }), make('dl', { class: 'facts' }, ...facts), classes(job_classes),
    make('p', { class: 'note', text: note })]
}

function change(name, now, then) {
  return [make('dt', { text: name }), make('dd', { text: arrow(now, then, short) })]
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
