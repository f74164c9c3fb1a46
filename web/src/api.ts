/** Requests to the server; the types of its responses are generated. */

import { decode, type Message } from "./binary.ts";
import type { Accepted, AlertAction, JsonRoutes, RunRows } from "./contract.ts";

export type * from "./contract.ts";

/** A failed request; `text` is for people. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly text: string,
  ) {
    super(text);
  }
}

const UNREACHABLE = "the server does not respond; is `stepscope serve` still running?";

export type Query = Record<string, string | number | boolean | readonly (string | number)[] | null | undefined>;

function address(path: string, query: Query): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === false) continue;
    for (const one of Array.isArray(value) ? value : [value]) params.append(name, String(one));
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

async function failure(answer: Response): Promise<ApiError> {
  if (answer.status === 401) {
    return new ApiError(401, "this page needs its token: open the address that `stepscope serve` printed");
  }
  try {
    const body = (await answer.json()) as { error?: { text?: string; id?: string } };
    return new ApiError(answer.status, body.error?.text ?? `the server returned ${answer.status}`);
  } catch {
    return new ApiError(answer.status, `the server returned ${answer.status}`);
  }
}

/** Send a request; null where the server reports that nothing has changed. */
export async function ask(path: string, query: Query = {}, signal?: AbortSignal): Promise<Response | null> {
  let answer: Response;
  try {
    answer = await fetch(address(path, query), { signal: signal ?? null, credentials: "same-origin" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, UNREACHABLE);
  }
  if (answer.status === 304) return null;
  if (!answer.ok) throw await failure(answer);
  return answer;
}

/** Request JSON. */
export async function json<P extends keyof JsonRoutes>(
  path: P,
  query: Query = {},
  signal?: AbortSignal,
): Promise<JsonRoutes[P]> {
  const answer = await ask(path, query, signal);
  if (!answer) throw new ApiError(304, "nothing has changed");
  return (await answer.json()) as JsonRoutes[P];
}

/** Request binary messages; null where nothing has changed. */
export async function messages(path: string, query: Query, signal?: AbortSignal): Promise<Message[] | null> {
  const answer = await ask(path, query, signal);
  return answer ? decode(await answer.arrayBuffer()) : null;
}

/** Request the list of runs; null where it has not changed since that version. */
export async function runsSince(since?: number): Promise<RunRows | null> {
  const answer = await ask("/api/runs", { since });
  return answer ? ((await answer.json()) as RunRows) : null;
}

/** Change the state of an alert. */
export async function changeAlert(action: AlertAction): Promise<Accepted> {
  let answer: Response;
  try {
    answer = await fetch("/api/alerts", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(action),
      credentials: "same-origin",
    });
  } catch {
    throw new ApiError(0, UNREACHABLE);
  }
  if (!answer.ok) throw await failure(answer);
  return (await answer.json()) as Accepted;
}

/** Return the text to show for an error. */
export function reason(error: unknown): string {
  if (error instanceof ApiError) return error.text;
  return error instanceof Error ? error.message : String(error);
}
