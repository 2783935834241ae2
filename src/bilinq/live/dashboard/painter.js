// When things are drawn: at most a few milliseconds in each frame, and only what can be seen.

const BUDGET = 8

/** Calls `draw()` of whatever asked for it, in the next frames; a view that is `heavy` to lay out is the last in a frame. */
export class Painter {
  #waiting = new Set()
  #seen = new WeakMap()
  #frame = 0
  #observer = new IntersectionObserver(entries => this.#look(entries), { rootMargin: '200px' })
  #views = new WeakMap()

  /** Begins to watch whether a view can be seen. */
  watch(view, element) {
    this.#views.set(element, view)
    this.#seen.set(view, false)
    this.#observer.observe(element)
  }

  /** Draws a view soon, or, if it cannot be seen, when it can. */
  ask(view) {
    this.#waiting.add(view)
    if (!this.#frame && this.#seen.get(view)) this.#frame = requestAnimationFrame(() => this.#paint())
  }

  #look(entries) {
    for (const entry of entries) {
      const view = this.#views.get(entry.target)
      this.#seen.set(view, entry.isIntersecting)
      if (entry.isIntersecting && this.#waiting.has(view)) this.ask(view)
    }
  }

  #paint() {
    this.#frame = 0
    const begin = performance.now()
    for (const view of this.#waiting) {
      if (!this.#seen.get(view)) continue
      if (performance.now() - begin > BUDGET) return this.#again()
      this.#waiting.delete(view)
      view.draw()
      if (view.heavy) return this.#again()
    }
    return undefined
  }

  /** Goes on in the next frame with what is left. */
  #again() {
    for (const view of this.#waiting) this.ask(view)
  }
}
