// Drawing: a canvas as sharp as the screen, the colours of the style sheet, and when views are drawn.

const NAMES = ['paper', 'ink', 'soft', 'faint', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8']
const RAMPS = ['share', 'worth']
const BUDGET = 8 // milliseconds of drawing in one frame

/** A canvas that fills `parent`; `changed` is called when its size changes. */
export class Canvas {
  width = 0
  height = 0

  constructor(parent, changed) {
    this.element = document.createElement('canvas')
    this.pen = this.element.getContext('2d')
    parent.append(this.element)
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width)
      this.height = Math.floor(entry.contentRect.height)
      changed()
    }).observe(parent)
  }

  /** Returns the pen on an empty canvas, with units of CSS pixels. */
  clear(font) {
    const scale = devicePixelRatio || 1
    const [width, height] = [Math.round(this.width * scale), Math.round(this.height * scale)]
    if (this.element.width !== width || this.element.height !== height) {
      this.element.width = width
      this.element.height = height
    }
    this.pen.setTransform(scale, 0, 0, scale, 0, 0)
    this.pen.clearRect(0, 0, this.width, this.height)
    this.pen.font = font
    return this.pen
  }
}

/** Calls `draw()` of views that asked for it and are visible; a `heavy` view is the last one of its frame. */
export class Painter {
  #waiting = new Set()
  #visible = new WeakMap()
  #frame = 0
  #observer = new IntersectionObserver(entries => this.#observe(entries), { rootMargin: '200px' })
  #views = new WeakMap()

  /** Starts to observe whether a view is visible. */
  watch(view, element) {
    this.#views.set(element, view)
    this.#visible.set(view, false)
    this.#observer.observe(element)
  }

  /** Draws a view soon, or as soon as it is visible. */
  ask(view) {
    this.#waiting.add(view)
    if (!this.#frame && this.#visible.get(view)) this.#frame = requestAnimationFrame(() => this.#paint())
  }

  #observe(entries) {
    for (const entry of entries) {
      const view = this.#views.get(entry.target)
      this.#visible.set(view, entry.isIntersecting)
      if (entry.isIntersecting && this.#waiting.has(view)) this.ask(view)
    }
  }

  #paint() {
    this.#frame = 0
    const begin = performance.now()
    for (const view of this.#waiting) {
      if (!this.#visible.get(view)) continue
      if (performance.now() - begin > BUDGET) return this.#again()
      this.#waiting.delete(view)
      view.draw()
      if (view.heavy) return this.#again()
    }
    return undefined
  }

  /** Continues in the next frame with the rest. */
  #again() {
    for (const view of this.#waiting) this.ask(view)
  }
}

/** The current colours, light or dark; `changed` is called when they change. */
export class Theme {
  constructor(changed) {
    this.#read()
    const dark = matchMedia('(prefers-color-scheme: dark)')
    dark.addEventListener('change', () => {
      this.#read()
      changed()
    })
  }

  #read() {
    const style = getComputedStyle(document.documentElement)
    const get = name => style.getPropertyValue(`--${name}`).trim()
    for (const name of NAMES) this[name] = get(name)
    this.font = `11px ${getComputedStyle(document.body).fontFamily}`
    for (const name of RAMPS) this[name] = ramp([1, 2, 3, 4].map(k => rgb(get(`${name}-${k}`))))
  }
}

function rgb(hex) {
  return [1, 3, 5].map(k => parseInt(hex.slice(k, k + 2), 16))
}

/** Returns a function from [0, 1] to colours between the stops: `fill`, and a readable `ink` on it. */
function ramp(stops) {
  const steps = Array.from({ length: 101 }, (_, k) => shade(stops, k / 100))
  return value => steps[Math.round(100 * Math.min(1, Math.max(0, value || 0)))]
}

function shade(stops, value) {
  const place = value * (stops.length - 1)
  const low = Math.min(Math.floor(place), stops.length - 2)
  const mix = stops[low].map((part, k) => Math.round(part + (place - low) * (stops[low + 1][k] - part)))
  return { fill: `rgb(${mix.join(' ')})`, ink: luminance(mix) > 0.2 ? '#101418' : '#ffffff' }
}

function luminance(colour) {
  const [r, g, b] = colour.map(part => part / 255).map(x => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}
