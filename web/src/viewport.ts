/** Visibility and size of elements, with one observer for all. */

type Seen = (inView: boolean) => void;

const seen = new WeakMap<Element, Seen>();
const sized = new WeakMap<Element, (width: number, height: number) => void>();

const sight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) seen.get(entry.target)?.(entry.isIntersecting);
  },
  { rootMargin: "240px 0px" },
);

const size = new ResizeObserver((entries) => {
  for (const entry of entries) sized.get(entry.target)?.(entry.contentRect.width, entry.contentRect.height);
});

/** Add a listener to the visibility of an element; returns a function that removes it. */
export function watchSight(element: Element, listener: Seen): () => void {
  seen.set(element, listener);
  sight.observe(element);
  return () => sight.unobserve(element);
}

/** Add a listener to the size of an element; returns a function that removes it. */
export function watchSize(element: Element, listener: (width: number, height: number) => void): () => void {
  sized.set(element, listener);
  size.observe(element);
  return () => size.unobserve(element);
}

const due = new Set<() => void>();
let planned = false;

/** Call a function in the next frame; the same function is called once. */
export function nextFrame(draw: () => void): void {
  due.add(draw);
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    const now = [...due];
    due.clear();
    for (const call of now) call();
  });
}
