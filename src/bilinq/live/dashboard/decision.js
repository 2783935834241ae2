// Why a job was given to a server class: the numbers behind the decision, loaded when they are unfolded.
import { duration, make, percent, short, tabular, write } from './dom.js'

const NAMES = ['Server class', 'Reward', 'Time', 'Price', 'Score', 'Chance']

/** Returns the decision on a job, folded. */
export function decisionOf(api, id) {
  const note = make('p', { class: 'note', role: 'status', text: 'Loading' })
  const fold = make('details', { class: 'decision' }, make('summary', { text: 'Why this server?' }), note)
  const load = async () => {
    if (!fold.open) return
    fold.removeEventListener('toggle', load)
    try {
      const found = await api.get(`v1/jobs/${id}/decision`)
      write(note, words(found))
      if (found.options.length) fold.append(table(found))
    } catch (error) {
      write(note, `No decision to show: ${error.message}`)
    }
  }
  fold.addEventListener('toggle', load)
  return fold
}

/** Returns a chance as a percentage; a tiny one is an estimate, of which only the size is known. */
function chance(value) {
  return value !== null && value < 1e-4 ? '< 0.01 %' : percent(value)
}

function words({ chosen, probability, explored }) {
  if (chosen === null) return 'The job waits; the numbers are those of now.'
  const likely = probability === null ? '' : `, which had a chance of ${chance(probability)}`
  return `${chosen} was chosen${likely}. Exploration: ${explored}. Score is reward less price.`
}

function table({ chosen, options }) {
  const rows = options.map(one => {
    const reward = `${short(one.value)} ± ${short(one.uncertainty)}`
    const cells = [reward, duration(one.duration), short(one.price), short(one.score), chance(one.probability)]
    const name = one.server_class === chosen ? `${one.server_class} ✓` : one.server_class
    return make('tr', {}, make('th', { scope: 'row', text: name }), ...cells.map(text => make('td', { text })))
  })
  return tabular('Options of the decision, best score first', NAMES, make('tbody', {}, ...rows))
}
