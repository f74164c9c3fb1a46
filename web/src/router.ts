/** The address holds all state after the `#`, as in `#/run/<id>/training?q=loss&x=time`: any view can be shared. */

export interface Place {
  /** "runs", or the name of a view of a run: "overview", "training", ... */
  view: string;
  /** Key of the run; empty for views of all runs. */
  run: string;
  params: URLSearchParams;
}

/** Parse the part of an address after `#`. */
export function parse(hash: string): Place {
  const text = hash.replace(/^#?\/?/, "");
  const [path = "", query = ""] = split(text, "?");
  const words = path
    .split("/")
    .filter((word) => word !== "")
    .map(decode);
  const params = new URLSearchParams(query);
  if (words[0] === "run" && words[1]) return { view: words[2] ?? "overview", run: words[1], params };
  return { view: words[0] ?? "runs", run: "", params };
}

/** Return the address of a place, with the `#`. */
export function address(place: Place): string {
  const query = place.params.toString();
  const run = place.run ? `run/${encodeURIComponent(place.run)}/` : "";
  const view = !place.run && place.view === "runs" ? "" : encodeURIComponent(place.view);
  return `#/${run}${view}${query ? `?${query}` : ""}`;
}

function split(text: string, mark: string): [string, string] {
  const place = text.indexOf(mark);
  return place < 0 ? [text, ""] : [text.slice(0, place), text.slice(place + 1)];
}

function decode(word: string): string {
  try {
    return decodeURIComponent(word);
  } catch {
    return word; // a broken link: the server will not know it, and says so
  }
}

export type Listener = (place: Place, before: Place) => void;

/** Watches and changes the address. */
export class Router {
  place: Place = parse(location.hash);
  private listeners = new Set<Listener>();

  constructor() {
    addEventListener("hashchange", () => this.arrive(parse(location.hash)));
  }

  /** Add a listener to changes; returns a function that removes it. */
  listen(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Go to a place, as a new entry of the history. */
  go(place: Partial<Place>): void {
    this.set(place, false);
  }

  /** Set parameters of the current place; null or "" removes one. By default without a new entry of the history. */
  param(changes: Record<string, string | number | boolean | null>, push = false): void {
    const params = new URLSearchParams(this.place.params);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "" || value === false) params.delete(name);
      else params.set(name, value === true ? "1" : String(value));
    }
    if (params.toString() !== this.place.params.toString()) this.set({ params }, !push);
  }

  /** Set all parameters of the current place, without a new entry of the history. */
  replace(params: URLSearchParams): void {
    this.set({ params }, true);
  }

  /** Return the address of another place for links; view and run default to the current ones, parameters do not. */
  link(place: Partial<Place>): string {
    return address({
      view: place.view ?? this.place.view,
      run: place.run ?? this.place.run,
      params: place.params ?? new URLSearchParams(),
    });
  }

  private set(change: Partial<Place>, replace: boolean): void {
    const place = { ...this.place, ...change };
    const hash = address(place);
    if (hash === address(this.place)) return;
    // pushState and replaceState fire no event, so the listeners are called here
    if (replace) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
    this.arrive(place);
  }

  private arrive(place: Place): void {
    const before = this.place;
    this.place = place;
    for (const listener of this.listeners) listener(place, before);
  }
}
