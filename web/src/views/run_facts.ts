/** Configuration and environment of a run. */

import type { RunHead } from "../api.ts";
import { type Child, h } from "../dom.ts";
import { ABSENT, moment, value } from "../format.ts";
import { card } from "../widgets.ts";

const MOST = 200;

/** Return the values of nested data by dotted name. */
export function flat(data: unknown, prefix = "", found: [string, string][] = []): [string, string][] {
  if (found.length >= MOST) return found;
  if (data !== null && typeof data === "object" && !Array.isArray(data)) {
    for (const [name, one] of Object.entries(data)) flat(one, prefix ? `${prefix}.${name}` : name, found);
  } else if (data !== undefined) found.push([prefix, typeof data === "string" ? data : JSON.stringify(data)]);
  return found;
}

/** Return the configuration as a card; null if it is empty. */
export function configFacts(config: unknown): HTMLElement | null {
  const rows = flat(config);
  if (!rows.length || (rows.length === 1 && rows[0]?.[0] === "")) return null;
  return card(
    "Configuration",
    h(
      "dl",
      { class: "facts" },
      rows.flatMap(([name, text]) => [h("dt", {}, name), h("dd", { class: "num" }, text)]),
    ),
  );
}

function words(data: unknown): string {
  if (data === null || data === undefined || data === "") return "";
  if (Array.isArray(data)) return data.map(String).join(" ");
  if (typeof data === "object")
    return Object.entries(data)
      .flatMap(([name, one]) => {
        const text = name.endsWith("_bytes") && typeof one === "number" ? value(one, "bytes") : words(one);
        return text === "" ? [] : [`${name.replace(/_bytes$/, "").replaceAll("_", " ")} ${text}`];
      })
      .join(", ");
  return String(data);
}

/** Return the environment of a run. */
export function machineFacts(head: RunHead): Child {
  const { run } = head;
  const memory = typeof run.memory === "number" ? value(run.memory, "bytes") : words(run.memory);
  const rows: [string, string, boolean?][] = [
    ["Project", run.project],
    ["Id", run.id],
    ["Folder", run.path, true],
    ["Command", words(run.command), true],
    ["Started", moment(run.created)],
    ["Host", words(run.host)],
    ["Platform", words(run.platform)],
    ["Python", words(run.python)],
    ["Processor", words(run.cpu)],
    ["Memory", memory],
    ["Git", words(run.git), true],
    ["World size", words(run.world_size)],
  ];
  return h(
    "dl",
    { class: "facts" },
    rows
      .filter(([, text]) => text && text !== ABSENT)
      .flatMap(([name, text, code]) => [h("dt", {}, name), h("dd", { class: code ? "code" : "" }, text)]),
  );
}
