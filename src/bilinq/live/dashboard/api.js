// Calls to the service, and the key that they need.
import { byId, write } from './dom.js'

const STORED_KEY = 'bilinq key'
const STORED_PROBLEM = 'bilinq problem'

/** Why a call failed; `status` is 0 if there was no response. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail)
    this.status = status
  }
}

/** The service, called with `key`. */
export class Api {
  constructor(key) {
    this.key = key
  }

  get(path, query = {}) {
    const text = new URLSearchParams(query).toString()
    return this.#call('GET', text ? `${path}?${text}` : path)
  }

  post(path, body) {
    return this.#call('POST', path, body)
  }

  patch(path, body) {
    return this.#call('PATCH', path, body)
  }

  /** Returns a response whose body is still to be read. */
  async open(path, headers, signal) {
    const response = await fetch(path, { headers: { ...this.#headers, ...headers }, signal, cache: 'no-store' })
    if (!response.ok) throw await refusal(response)
    return response
  }

  get #headers() {
    return { Authorization: `Bearer ${this.key}` }
  }

  async #call(method, path, body) {
    const options = { method, headers: this.#headers, cache: 'no-store' }
    if (body !== undefined) {
      options.headers['Content-Type'] = 'application/json'
      options.body = JSON.stringify(body)
    }
    const response = await fetch(path, options).catch(() => {
      throw new Refused(0, 'the service does not respond')
    })
    if (!response.ok) throw await refusal(response)
    return response.status === 204 ? null : response.json()
  }
}

async function refusal(response) {
  const problem = await response.json().catch(() => ({}))
  return new Refused(response.status, problem.detail ?? `the service responded with status ${response.status}`)
}

/** Returns the stored key, or null; a key in the address (#key=...) is stored and removed from there. */
export function storedKey() {
  const given = /^#key=(.+)$/.exec(location.hash)
  if (given) {
    sessionStorage.setItem(STORED_KEY, given[1])
    history.replaceState(null, '', location.pathname + location.search)
  }
  return sessionStorage.getItem(STORED_KEY)
}

/** Stores a key until the tab is closed. */
export function storeKey(key) {
  sessionStorage.setItem(STORED_KEY, key)
}

/** Forgets the key; `why` is shown when the next one is asked for. */
export function dropKey(why = '') {
  sessionStorage.removeItem(STORED_KEY)
  sessionStorage.setItem(STORED_PROBLEM, why)
}

/** Shows why the last key was dropped, asks for another and returns it. */
export function askKey() {
  const card = byId('sign-in')
  const form = card.querySelector('form')
  card.hidden = false
  write(card.querySelector('.problem'), sessionStorage.getItem(STORED_PROBLEM) ?? '')
  byId('key').value = ''
  byId('key').focus()
  return new Promise(resolve => {
    form.addEventListener('submit', event => {
      event.preventDefault()
      card.hidden = true
      resolve(byId('key').value.trim())
    }, { once: true })
  })
}
