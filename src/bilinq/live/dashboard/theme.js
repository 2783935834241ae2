// Colours of the style sheet, for what is drawn; light or dark.

const NAMES = ['paper', 'ink', 'soft', 'faint', 'quiet', 'c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8']
const RAMPS = ['share', 'worth']

/** The colours now; `changed` is called when they become others. */
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

/** Returns a function from [0, 1] to colours between the stops: `fill`, and `ink` that can be read on it. */
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
