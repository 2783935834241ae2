// The key: from the address, from this tab's memory, or asked for.
import { byId, write } from './dom.js'

const PLACE = 'bilinq key'
const WHY = 'bilinq trouble'

/** Returns the key that is known, or null; one in the address (#key=...) is taken over and removed from there. */
export function knownKey() {
  const given = /^#key=(.+)$/.exec(location.hash)
  if (given) {
    sessionStorage.setItem(PLACE, given[1])
    history.replaceState(null, '', location.pathname + location.search)
  }
  return sessionStorage.getItem(PLACE)
}

/** Keeps a key until the tab is closed. */
export function keepKey(key) {
  sessionStorage.setItem(PLACE, key)
}

/** Forgets the key; `why` is said when another is asked for. */
export function dropKey(why = '') {
  sessionStorage.removeItem(PLACE)
  sessionStorage.setItem(WHY, why)
}

/** Asks for a key, after saying what was wrong with the last; returns it. */
export function askKey() {
  const door = byId('door')
  const form = door.querySelector('form')
  door.hidden = false
  write(door.querySelector('.trouble'), sessionStorage.getItem(WHY) ?? '')
  byId('key').value = ''
  byId('key').focus()
  return new Promise(resolve => {
    form.addEventListener('submit', event => {
      event.preventDefault()
      door.hidden = true
      resolve(byId('key').value.trim())
    }, { once: true })
  })
}
