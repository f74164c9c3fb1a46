/** What the server tells, as types; and how it is asked. */

import { decode, type Message } from "./binary.ts";

export type RunState =
  | "running"
  | "finished"
  | "interrupted"
  | "failed"
  | "killed"
  | "oom-killed"
  | "preempted"
  | "lost"
  | "broken"
  | "reading";
export type Severity = "info" | "warning" | "critical";

export interface Server {
  version: string;
  root: string;
  heading: string;
  refresh: number;
  capabilities: { alerts: boolean; diagnosis: boolean; actions: boolean };
  limits: { names: number; runs: number; points: number; rows: number };
  python: string;
  now: number;
}

export interface Card {
  rate: number | null;
  recent_rate: number | null;
  samples_per_second: number | null;
  loss: { name: string; last: number | null; best: number | null } | null;
  spark: (number | null)[];
  gpu: number | null;
  step_seconds: number | null;
  total_steps: number | null;
  left: number | null;
  cost: { amount: number; currency: string } | null;
  alert: { rule: string; severity: Severity; state: string; text: string } | null;
  problems: number;
}

export interface Row {
  key: string;
  id: string;
  name: string;
  project: string;
  state: RunState;
  cause: string;
  created: number | null;
  duration: number | null;
  step: number | null;
  heard: number | null;
  attempts: number;
  card: Card | null;
}

export interface Rows {
  version: number | string;
  complete: boolean;
  reading: number;
  total: number;
  rows: Row[];
  gone: string[];
}

export interface Status {
  state: RunState;
  cause: string;
  step: number | null;
  epoch: number | null;
  heard: number | null;
  now: number;
  total_steps: number | null;
  progress: number | null;
  left: number | null;
  rate: number | null;
  events: number;
  firing: number;
  worst: Severity | null;
  names: number;
}

export interface Phase {
  phase: string;
  seconds: number;
  share: number;
  mean: number;
  p50: number | null;
  p95: number | null;
}

export interface Head {
  run: {
    key: string;
    id: string;
    name: string;
    project: string;
    path: string;
    created: number | null;
    world_size: number | null;
    config: unknown;
  } & Record<string, unknown>;
  status: Status;
  card: Card | null;
  ranks: {
    attempt: number;
    rank: number;
    node: string;
    state: string;
    cause: string;
    pid: number | null;
    step: number | null;
    rows: number | null;
    lost: number | null;
    seconds: number | null;
  }[];
  numbers: { key: string; label: string; value: number | null; unit: string; text: string }[];
  time: {
    steps: number;
    seconds: number;
    step: { mean: number; p50: number; p95: number; max: number };
    phases: Phase[];
  } | null;
  throughput: { attempt: number; ranks: number; steps_per_second: number | null; samples_per_second: number | null }[];
  important: string[];
  changes: { time: number | null; text: string }[];
  end: { traceback: string[]; events: unknown[] } | null;
  own_cost: Record<string, unknown> | null;
  problems: string[];
  definitions: Record<string, string>;
}

export interface MetricFacts {
  name: string;
  unit: string;
  kind: string;
  help: string;
  group: string;
  source: "training" | "phase" | "machine" | "own";
  count: number;
  important: boolean;
}

export interface Names {
  version: number | string;
  ranks: number[];
  attempts: number[];
  metrics: MetricFacts[];
}

export interface RunEvent {
  time: number | null;
  kind: string;
  rank: number | null;
  attempt: number | null;
  step: number | null;
  text: string;
  data: Record<string, unknown>;
}

export interface Alert {
  alert: string;
  rule: string;
  state: "pending" | "firing" | "acknowledged" | "silenced" | "resolved";
  severity: Severity;
  text: string;
  remedy: string | null;
  labels: Record<string, unknown> | null;
  evidence: Record<string, unknown> | null;
  rank: number | null;
  step: number | null;
  since: number | null;
  until: number | null;
}

export interface Histograms {
  names: string[];
  rows: {
    step: number | null;
    time: number | null;
    rank: number;
    attempt: number;
    edges: number[];
    counts: number[];
  }[];
}

export interface Finding {
  kind: string;
  text: string;
  severity: string;
  remedy: string;
  evidence: Record<string, unknown>;
  confidence?: number | null;
  cost_seconds?: number | null;
  expected_gain?: string;
  gain_ratio?: number | null;
}

export interface Diagnosis {
  /** The kind of the finding that matters most; null where nothing was found. */
  primary: string | null;
  summary: string;
  findings: Finding[];
  missing: { signal: string; why: string; remedy: string }[];
  changes: { metric: string; step: number | null; time: number | null; text: string }[];
  notes: string[];
}

/** Where the time, the money and the energy of a run went; each by class, in the order of `classes`. */
export interface Ledger {
  wall_seconds: number;
  paid_seconds: number;
  goodput_ratio: number | null;
  ranks: number;
  steps: number;
  seconds: Record<string, number>;
  attempts: {
    attempt: number;
    began: number;
    seconds: number;
    ranks: number;
    state: string;
    classes: Record<string, number>;
  }[];
  imported: { format: string; timed: boolean } | null;
  devices: number;
  device: "gpu" | "machine";
  money: {
    currency: string;
    per_device_hour: number;
    source: string;
    total: number;
    wasted: number;
    classes: Record<string, number>;
  } | null;
  energy: {
    joules: Record<string, number>;
    kwh: number;
    co2_kg: number | null;
    region: string;
    sources: string[];
    covered_ratio: number;
  } | null;
  wasted: { class: string; seconds: number; share: number | null; remedy: string }[];
  forecast: { seconds: number; low: number; high: number | null; text: string; money: number | null } | null;
  advice: Finding[];
  /** What is in each class. */
  classes: Record<string, string>;
  definitions: Record<string, string>;
}

/** Why an answer did not come; `text` is for people. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly text: string,
  ) {
    super(text);
  }
}

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
    return new ApiError(answer.status, body.error?.text ?? `the server answered ${answer.status}`);
  } catch {
    return new ApiError(answer.status, `the server answered ${answer.status}`);
  }
}

/** Ask the server; null where it says that nothing has changed. */
export async function ask(path: string, query: Query = {}, signal?: AbortSignal): Promise<Response | null> {
  let answer: Response;
  try {
    answer = await fetch(address(path, query), { signal: signal ?? null, credentials: "same-origin" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "the server does not answer; is `stepscope serve` still running?");
  }
  if (answer.status === 304) return null;
  if (!answer.ok) throw await failure(answer);
  return answer;
}

/** Ask for JSON. */
export async function json<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const answer = await ask(path, query, signal);
  if (!answer) throw new ApiError(304, "nothing has changed");
  return (await answer.json()) as T;
}

/** Ask for JSON that may not have changed. */
export async function jsonSince<T>(path: string, query: Query, signal?: AbortSignal): Promise<T | null> {
  const answer = await ask(path, query, signal);
  return answer ? ((await answer.json()) as T) : null;
}

/** Ask for binary messages. */
export async function messages(path: string, query: Query, signal?: AbortSignal): Promise<Message[] | null> {
  const answer = await ask(path, query, signal);
  return answer ? decode(await answer.arrayBuffer()) : null;
}

/** Send an order as JSON. */
export async function post<T>(path: string, body: unknown): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    throw new ApiError(0, "the server does not answer; is `stepscope serve` still running?");
  }
  if (!answer.ok) throw await failure(answer);
  return (await answer.json()) as T;
}

export const api = {
  server: (): Promise<Server> => json<Server>("/api/server"),
  runs: (since?: number | string): Promise<Rows | null> => jsonSince<Rows>("/api/runs", { since }),
  head: (run: string): Promise<Head> => json<Head>("/api/run", { run }),
  names: (run: string): Promise<Names> => json<Names>("/api/names", { run }),
  events: (run: string, kind?: string): Promise<{ total: number; events: RunEvent[] }> =>
    json("/api/events", { run, kind, limit: 500 }),
  alerts: (run: string): Promise<{ alerts: Alert[] }> => json("/api/alerts", { run }),
  histograms: (run: string, name?: string): Promise<Histograms> => json("/api/histograms", { run, name }),
  diagnosis: (run: string): Promise<Diagnosis> => json("/api/diagnosis", { run }),
  ledger: (run: string): Promise<Ledger> => json("/api/ledger", { run }),
};

/** Return what to tell a person about an error. */
export function reason(error: unknown): string {
  if (error instanceof ApiError) return error.text;
  return error instanceof Error ? error.message : String(error);
}
