/** How a run ended: the first error among its ranks, the errors that follow from it, and the last lines of its rank. */

import type { FirstErrorRow, RunEnd } from "../api.ts";
import { type Child, h } from "../dom.ts";
import { capital, share } from "../format.ts";
import { card } from "../widgets.ts";

const [FOLDED, NAMED] = [8, 6];

/** Return the card; `link` returns the address of the console around a time. */
export function endCard(end: RunEnd, link: (time: number, rank: number | null) => string): HTMLElement | null {
  const first = end.first_error;
  if (!end.traceback.length && !first) return null;
  return card(
    "How it ended",
    first ? about(first) : null,
    end.traceback.length ? h("pre", { class: "traceback" }, end.traceback.join("\n")) : null,
    first?.local_time
      ? h("a", { attrs: { href: link(first.local_time, first.rank) } }, `Console of rank ${first.rank}`)
      : null,
    first ? others(first) : null,
  );
}

function about(first: FirstErrorRow): Child {
  const then = first.chain.slice(1);
  return [
    h("p", { class: "first-error" }, h("strong", {}, "First error: "), first.summary),
    h("p", { class: "soft" }, `${capital(first.why)} (${share(first.confidence)} sure).`),
    then.length ? h("p", { class: "soft" }, `Then: ${then.join(" → ")}`) : null,
  ];
}

function others(first: FirstErrorRow): HTMLElement | null {
  if (!first.others.length) return null;
  const total = first.others.reduce((sum, one) => sum + one.ranks.length, 0);
  return h(
    "details",
    { class: "first-others" },
    h("summary", {}, `${total} other ranks ended after it`),
    h(
      "ul",
      {},
      first.others
        .slice(0, FOLDED)
        .map((one) => h("li", {}, h("strong", {}, ranks(one.ranks)), ` ${one.why}: `, h("code", {}, one.line))),
    ),
  );
}

/** Return ranks in words; many are only counted. */
function ranks(found: number[]): string {
  if (found.length > NAMED) return `${found.length} ranks`;
  return `${found.length > 1 ? "ranks" : "rank"} ${found.join(", ")}`;
}
