// Which of many classes get a colour.

export const COLOURS = ['c1', 'c2', 'c3', 'c4', 'c5', 'c6', 'c7', 'c8']
const EVERY = 30 // seconds between two choices

/** Where there are more classes than colours, chooses the largest; a class keeps its colour while it is chosen. */
export class Choice {
  #colour = new Map()
  #chosen = -Infinity
  #names = ''

  /** Returns the series of `names`, with columns named `stem` and the class; those without a colour are quiet. */
  series(history, stem, names) {
    const now = history.at[history.last]
    if (names.join('\n') !== this.#names || (names.length > COLOURS.length && now - this.#chosen > EVERY)) {
      this.#choose(history, stem, names)
      this.#names = names.join('\n')
      this.#chosen = now
    }
    return names.map(name => {
      const colour = this.#colour.get(name)
      return { column: `${stem} ${name}`, label: name, colour: colour ?? 'quiet', quiet: !colour }
    })
  }

  #choose(history, stem, names) {
    const size = new Map(names.map(name => [name, mean(history, history.column(`${stem} ${name}`))]))
    const few = names.length <= COLOURS.length
    const largest = few ? names : [...names].sort((a, b) => size.get(b) - size.get(a)).slice(0, COLOURS.length)
    for (const name of this.#colour.keys()) if (!largest.includes(name)) this.#colour.delete(name)
    const free = COLOURS.filter(colour => ![...this.#colour.values()].includes(colour))
    for (const name of largest) if (!this.#colour.has(name)) this.#colour.set(name, free.shift())
  }
}

function mean(history, column) {
  let [total, many] = [0, 0]
  for (let i = history.start; i < history.end; i += 1) {
    if (Number.isNaN(column[i])) continue
    total += column[i]
    many += 1
  }
  return many ? total / many : 0
}
