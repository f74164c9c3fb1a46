/** Which elements are in sight, and how large they are: one observer for all. */

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

/** Call back when an element comes into sight or leaves it; returns how to stop. */
export function watchSight(element: Element, listener: Seen): () => void {
  seen.set(element, listener);
  sight.observe(element);
  return () => sight.unobserve(element);
}

/** Call back when an element's size changes; returns how to stop. */
export function watchSize(element: Element, listener: (width: number, height: number) => void): () => void {
  sized.set(element, listener);
  size.observe(element);
  return () => size.unobserve(element);
}

const due = new Set<() => void>();
let planned = false;

/** Draw in the next frame; the same call asked for twice is done once. */
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
