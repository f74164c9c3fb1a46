/** The search field of a view; `/` focuses it, and the address holds the query. */

import { h, show } from "./dom.ts";
import { type Matcher, matcher } from "./text_match.ts";

export interface Search {
  element: HTMLElement;
  /** Show a query from elsewhere, such as the address. */
  set(query: string): void;
  matcher(): Matcher;
}

/** Make a search field. */
export function search(placeholder: string, typed: (query: string) => void): Search {
  const hint = h("kbd", {}, "/");
  const input = h("input", {
    attrs: { type: "search", placeholder, "aria-label": placeholder, autocomplete: "off", spellcheck: "false" },
    title: "Words in any order, letters with gaps, or a regular expression such as loss$|acc",
    on: {
      input: () => {
        note();
        typed(input.value);
      },
    },
  });
  const note = (): void => {
    const { problem } = matcher(input.value);
    input.setAttribute("aria-invalid", String(problem !== ""));
    input.title = problem || "Words in any order, letters with gaps, or a regular expression such as loss$|acc";
    show(hint, input.value === "");
  };
  return {
    element: h("div", { class: "search" }, input, hint),
    set: (query) => {
      if (input.value !== query) input.value = query;
      note();
    },
    matcher: () => matcher(input.value),
  };
}
