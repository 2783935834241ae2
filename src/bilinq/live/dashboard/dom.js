// Elements, and numbers and times as text. Text is inserted as text, never as markup.

/** Returns a new element; `given` contains attributes, listeners (onclick, ...) and properties (text, hidden, ...). */
export function make(tag, given = {}, ...inside) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(given)) set(element, name, value)
  element.append(...inside)
  return element
}

function set(element, name, value) {
  if (name === 'text') element.textContent = value
  else if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
  else if (typeof value === 'boolean') element[name] = value
  else if (value !== undefined && value !== null) element.setAttribute(name, value)
}

/** Returns the element with this id. */
export function byId(id) {
  return document.getElementById(id)
}

/** Sets a text only if it differs, so that nothing is laid out or read aloud twice. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/** Announces a text to screen readers. */
export function announce(text) {
  write(byId('readout'), text)
}

/** Returns a table with these column names in a box that scrolls; `title` is its name for screen readers. */
export function tabular(title, names, body) {
  const head = make('tr', {}, ...names.map(name => make('th', { scope: 'col', text: name })))
  const table = make('table', {}, make('caption', { class: 'unseen', text: title }), make('thead', {}, head), body)
  return make('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `${title}: table` }, table)
}

let ids = 0

/** Returns an id that no other element has. */
export function freshId(stem) {
  ids += 1
  return `${stem}-${ids}`
}

const UNKNOWN = '–'

const known = value => value !== null && value !== undefined && !Number.isNaN(value)

/** Returns a number with three digits (0.812, 12.3, 4,711), or a dash if it is unknown. */
export function short(value) {
  if (!known(value)) return UNKNOWN
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(3)))
}

/** Returns a number with six digits, for tables. */
export function exact(value) {
  return known(value) ? String(Number(value.toPrecision(6))) : UNKNOWN
}

/** Returns a share as a percentage. */
export function percent(value) {
  return known(value) ? `${short(100 * value)} %` : UNKNOWN
}

/** Returns a duration, given in seconds, in a suitable unit. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN
  if (seconds === 0) return '0 s'
  if (Math.abs(seconds) < 1) return `${short(1000 * seconds)} ms`
  if (Math.abs(seconds) < 120) return `${short(seconds)} s`
  return Math.abs(seconds) < 7200 ? `${short(seconds / 60)} min` : `${short(seconds / 3600)} h`
}

/** Returns the time of day, with the date if it is not today. */
export function clock(at) {
  if (!known(at)) return UNKNOWN
  const date = new Date(1000 * at)
  const time = date.toTimeString().slice(0, 8)
  return date.toDateString() === new Date().toDateString() ? time : `${date.toISOString().slice(0, 10)} ${time}`
}

/** Returns "1 job" or "2 jobs". */
export function count(number, noun) {
  return `${short(number)} ${noun}${number === 1 ? '' : 's'}`
}
