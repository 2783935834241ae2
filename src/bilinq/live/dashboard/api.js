// Calls to the service.

/** Why a call came to nothing; `status` is 0 where nobody answered. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail)
    this.status = status
  }
}

/** The service, as the holder of `key` may use it. */
export class Api {
  constructor(key) {
    this.key = key
  }

  get(path, query = {}) {
    const text = new URLSearchParams(query).toString()
    return this.#ask('GET', text ? `${path}?${text}` : path)
  }

  post(path, body) {
    return this.#ask('POST', path, body)
  }

  patch(path, body) {
    return this.#ask('PATCH', path, body)
  }

  /** Returns an answer whose body is still to come. */
  async open(path, headers, signal) {
    const answer = await fetch(path, { headers: { ...this.#headers, ...headers }, signal, cache: 'no-store' })
    if (!answer.ok) throw await refusal(answer)
    return answer
  }

  get #headers() {
    return { Authorization: `Bearer ${this.key}` }
  }

  async #ask(method, path, body) {
    const given = { method, headers: this.#headers, cache: 'no-store' }
    if (body !== undefined) {
      given.headers['Content-Type'] = 'application/json'
      given.body = JSON.stringify(body)
    }
    const answer = await fetch(path, given).catch(() => {
      throw new Refused(0, 'the service does not answer')
    })
    if (!answer.ok) throw await refusal(answer)
    return answer.status === 204 ? null : answer.json()
  }
}

async function refusal(answer) {
  const problem = await answer.json().catch(() => ({}))
  return new Refused(answer.status, problem.detail ?? `the service answered ${answer.status}`)
}
