// A canvas as sharp as the screen.

/** A canvas in `parent` that fills its width; `changed` is called when its size is another. */
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
