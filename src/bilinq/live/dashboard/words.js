// Numbers and times as people read them. What is not known is a dash.

export const NOTHING = '–'

const known = value => value !== null && value !== undefined && !Number.isNaN(value)

/** Three digits: 0.812, 12.3, 4,711. */
export function short(value) {
  if (!known(value)) return NOTHING
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString('en') : String(Number(value.toPrecision(3)))
}

/** Six digits, for tables. */
export function exact(value) {
  return known(value) ? String(Number(value.toPrecision(6))) : NOTHING
}

/** A share as per cent. */
export function percent(value) {
  return known(value) ? `${short(100 * value)} %` : NOTHING
}

/** A duration in seconds, in the unit that suits it. */
export function duration(seconds) {
  if (!known(seconds)) return NOTHING
  if (seconds === 0) return '0 s'
  if (Math.abs(seconds) < 1) return `${short(1000 * seconds)} ms`
  if (Math.abs(seconds) < 120) return `${short(seconds)} s`
  return Math.abs(seconds) < 7200 ? `${short(seconds / 60)} min` : `${short(seconds / 3600)} h`
}

/** The time of day; with the date if it is not today. */
export function clock(at) {
  if (!known(at)) return NOTHING
  const date = new Date(1000 * at)
  const time = date.toTimeString().slice(0, 8)
  return date.toDateString() === new Date().toDateString() ? time : `${date.toISOString().slice(0, 10)} ${time}`
}

/** "1 job", "2 jobs". */
export function count(number, noun) {
  return `${short(number)} ${noun}${number === 1 ? '' : 's'}`
}
