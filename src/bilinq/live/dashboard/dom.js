// Elements. Text goes in as text, never as markup.

/** Returns a new element; `given` holds attributes, listeners (onclick, ...) and properties (text, hidden, ...). */
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

/** Sets a text only if it is another, so that nothing is laid out or read aloud twice. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/** Says something to those who listen to the page. */
export function say(text) {
  write(byId('readout'), text)
}

/** Returns a table under these names, which scrolls by itself; `title` is what it is called by those who do not see it. */
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
