// The time that is pointed at, in all charts at once.

/** A time, or null where nobody points; those who listen are told when it changes. */
export class Cursor {
  time = null
  #listeners = []

  listen(listener) {
    this.#listeners.push(listener)
  }

  set(time) {
    if (time === this.time) return
    this.time = time
    for (const listener of this.#listeners) listener()
  }
}
