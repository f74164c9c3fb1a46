/** A list of any length whose rows are all equally high; only the visible ones exist. */

import { fill, h } from "../dom.ts";

const SPARE = 12;

export class VirtualList {
  readonly element: HTMLElement;
  private readonly sheet = h("div", { class: "rows-sheet" });
  private count = 0;
  private drawn = "";

  constructor(
    private readonly height: number,
    label: string,
    private readonly row: (place: number) => HTMLElement,
    private readonly scrolled: () => void,
  ) {
    this.element = h(
      "div",
      {
        class: "rows",
        attrs: { tabindex: 0, role: "log", "aria-label": label, "aria-live": "off" },
        on: { scroll: () => this.moved() },
      },
      this.sheet,
    );
  }

  /** Whether the last row is visible. */
  get atEnd(): boolean {
    const { scrollTop, clientHeight, scrollHeight } = this.element;
    return scrollTop + clientHeight >= scrollHeight - 2 * this.height;
  }

  /** Whether the first row is visible. */
  get atStart(): boolean {
    return this.element.scrollTop < 2 * this.height;
  }

  /** Rows of a page. */
  get page(): number {
    return Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
  }

  /** Set the number of rows and draw them; `before` rows were added above, so that the view stays. */
  resize(count: number, before = 0): void {
    this.count = count;
    this.sheet.style.setProperty("height", `${count * this.height}px`);
    if (before) this.element.scrollTop += before * this.height;
    this.draw(true);
  }

  toEnd(): void {
    this.element.scrollTop = this.count * this.height;
    this.draw();
  }

  /** Scroll as little as needed to show a row, or to its middle. */
  reveal(place: number, middle = false): void {
    const top = place * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (middle) this.element.scrollTop = top - clientHeight / 2;
    else if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top + this.height - clientHeight;
    this.draw(true);
  }

  draw(always = false): void {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - SPARE);
    const last = Math.min(this.count, first + Math.ceil(this.element.clientHeight / this.height) + 2 * SPARE);
    const key = `${first} ${last}`;
    if (key === this.drawn && !always) return;
    this.drawn = key;
    const rows: HTMLElement[] = [];
    for (let place = first; place < last; place += 1) {
      const row = this.row(place);
      row.style.setProperty("top", `${place * this.height}px`);
      rows.push(row);
    }
    fill(this.sheet, rows);
  }

  private moved(): void {
    this.draw();
    this.scrolled();
  }
}
