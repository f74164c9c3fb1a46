/** Create elements in code. Text always becomes a text node: nothing here parses markup. */

export type Child = Node | string | number | null | undefined | false | Child[];

export interface Props {
  class?: string | undefined;
  title?: string | undefined;
  /** Attributes by name; false, null and undefined omit an attribute, true sets it to "". */
  attrs?: Record<string, string | number | boolean | null | undefined>;
  /** CSS properties, set through the object model, which the content security policy allows. */
  style?: Record<string, string>;
  on?: { [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };
}

const SVG = "http://www.w3.org/2000/svg";

function furnish<E extends HTMLElement | SVGElement>(element: E, props: Props, children: Child[]): E {
  if (props.class) element.setAttribute("class", props.class);
  if (props.title) element.setAttribute("title", visible(props.title));
  for (const [name, value] of Object.entries(props.attrs ?? {})) {
    if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const [name, value] of Object.entries(props.style ?? {})) element.style.setProperty(name, value);
  for (const [name, listener] of Object.entries(props.on ?? {})) {
    element.addEventListener(name, listener as EventListener);
  }
  add(element, children);
  return element;
}

/** Append children: nodes, and text as text nodes. */
export function add(parent: Node, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) add(parent, child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) {
      parent.appendChild(document.createTextNode(visible(String(child))));
    }
  }
}

/** Make an HTML element. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return furnish(document.createElement(tag), props, children);
}

/** Make an SVG element. */
export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return furnish(document.createElementNS(SVG, tag), props, children);
}

/** Replace the children of an element. */
export function fill(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  add(parent, children);
}

/** Set an element's text if it differs, which avoids flicker. */
export function setText(element: Element, text: string): void {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Show or hide an element. */
export function show(element: HTMLElement, on: boolean): void {
  if (element.hidden === on) element.hidden = !on;
}

/** Set an attribute if it differs. */
export function setAttr(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// Control characters, separators and direction marks, which could hide or reorder text.
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it looks for
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g;

/** Return a text of bounded length with its invisible characters made visible. */
export function visible(text: string): string {
  const cut = text.length > 2000 ? `${text.slice(0, 2000)}…` : text;
  return cut.replace(UNSEEN, (found) => {
    if (found === "\n" || found === "\t") return found;
    const code = found.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x202f ? "\u202f" : "\ufffd";
  });
}

/** Return a value that must exist. */
export function must<T>(value: T | null | undefined, what: string): T {
  if (value === null || value === undefined) throw new Error(`the page has no ${what}`);
  return value;
}
