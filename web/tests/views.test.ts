import assert from "node:assert/strict";
import { test } from "node:test";

import type { AlertRow, MetricRow, Metrics, RunEvent, RunRow } from "../src/api.ts";
import { byUrgency, isOpen, matching, stateWord } from "../src/views/alert_order.ts";
import { shade } from "../src/views/colour_scale.ts";
import { quantity, tone } from "../src/views/difference.ts";
import { fileName } from "../src/views/file_name.ts";
import { shares } from "../src/views/ledger_classes.ts";
import { labels } from "../src/views/line_labels.ts";
import { emptyColumns } from "../src/views/run_columns.ts";
import { shared } from "../src/views/shared_metrics.ts";
import { behind, webLink } from "../src/views/sink_words.ts";
import { textsOf } from "../src/views/text_cards.ts";
import { throttled } from "../src/views/throttling.ts";

function alert(facts: Partial<AlertRow>): AlertRow {
  return {
    alert: "a",
    rule: "r",
    state: "firing",
    severity: "warning",
    text: "",
    remedy: "",
    labels: {},
    evidence: {},
    key: "",
    count: 1,
    transitions: [],
    rank: null,
    step: null,
    since: 0,
    until: null,
    ...facts,
  };
}

test("the worst alert that is not acknowledged comes first", () => {
  const found = byUrgency([
    alert({ alert: "taken", severity: "critical", state: "acknowledged" }),
    alert({ alert: "old", severity: "critical", since: 1 }),
    alert({ alert: "new", severity: "critical", since: 2 }),
    alert({ alert: "mild", severity: "info" }),
  ]);
  assert.deepEqual(
    found.map((one) => one.alert),
    ["new", "old", "mild", "taken"],
  );
});

test("a resolved alert is not open", () => {
  assert.equal(isOpen(alert({ state: "resolved" })), false);
  assert.equal(isOpen(alert({ state: "silenced" })), true);
});

test("alerts are found by all words, in labels too", () => {
  const some = [alert({ rule: "gpu-hot", labels: { gpu: "2" } }), alert({ rule: "loss-nan" })];
  assert.equal(matching(some, "HOT 2").length, 1);
  assert.equal(matching(some, "").length, 2);
});

test("verdicts have a style", () => {
  assert.equal(tone("better"), "good");
  assert.equal(tone("worse"), "bad");
  assert.equal(tone("no difference"), "even");
});

test("the color scale is dark at 0, bright at 1, and bounded", () => {
  assert.deepEqual(shade(0), shade(-5));
  assert.deepEqual(shade(1), shade(7));
  assert.ok(shade(1).reduce((sum, one) => sum + one) > shade(0).reduce((sum, one) => sum + one));
});

test("a picture's file name has no path in it", () => {
  assert.equal(fileName("train/loss"), "train-loss");
  assert.equal(fileName("../../etc/passwd"), "etc-passwd");
  assert.equal(fileName("…"), "chart");
});

test("lines of a chart are labeled by their differences", () => {
  assert.deepEqual([...labels(["gpu/0/power_watts", "gpu/1/power_watts"]).values()], ["GPU 0", "GPU 1"]);
  assert.deepEqual(
    [...labels(["disk/read_bytes_per_second", "disk/write_bytes_per_second"]).values()],
    ["read", "write"],
  );
  assert.deepEqual([...labels(["cpu/usage_ratio"]).values()], ["usage ratio"]);
});

test("metrics of several runs come before metrics of one run, important metrics first", () => {
  const names = (list: [string, boolean][]): Metrics => ({
    ranks: [0],
    attempts: [0],
    metrics: list.map(([name, important]) => ({
      name,
      unit: "",
      kind: "gauge",
      help: "",
      group: "",
      source: "training",
      count: 1,
      important,
    })),
  });
  const found = shared([
    names([
      ["own", true],
      ["b", false],
      ["loss", true],
    ]),
    names([
      ["loss", true],
      ["b", false],
    ]),
  ]);
  assert.deepEqual(
    found.map((one) => one.name),
    ["loss", "b", "own"],
  );
});

test("a throttled GPU shows why", () => {
  assert.equal(throttled({ throttle_hw_thermal: 1, throttle_power_cap: 0, power_watts: 5 }), "throttled: hw thermal");
  assert.equal(throttled({ power_watts: 5 }), "");
});

test("a class without time is not listed, and shares are of the wall-clock time", () => {
  assert.deepEqual(shares({ productive: 3, data: 0, redone: 1 }, 4), [
    { name: "productive", seconds: 3, share: 0.75 },
    { name: "redone", seconds: 1, share: 0.25 },
  ]);
  assert.deepEqual(shares({ productive: 0 }, 0), []);
});

test("quality metrics come before speed metrics, and counters come last", () => {
  const metric = (name: string, more: Partial<MetricRow> = {}): MetricRow => ({
    name,
    unit: "",
    kind: "gauge",
    help: "",
    group: "",
    source: "training",
    count: 1,
    important: false,
    ...more,
  });
  const own: Metrics = {
    ranks: [0],
    attempts: [0],
    metrics: [
      metric("epoch", { important: true }),
      metric("step_seconds", { kind: "duration", unit: "seconds" }),
      metric("tokens_per_second", { unit: "tokens/second" }),
      metric("phase/data", { source: "phase" }),
      metric("reward"),
    ],
  };
  const found = shared([own, own]);
  assert.deepEqual(
    found.filter((one) => !one.time).map((one) => one.name),
    ["reward", "epoch"],
  );
  assert.deepEqual(
    found.filter((one) => one.time).map((one) => one.name),
    ["step_seconds", "tokens_per_second", "phase/data"],
  );
});

test("a quantity at a step or after a time is put in words", () => {
  assert.equal(quantity("eval/loss@1999"), "eval/loss at step 1999");
  assert.equal(quantity("loss@2.5s").replace("\u202f", " "), "loss after 2.5 s");
  assert.equal(quantity("loss@50%").replace("\u202f", " "), "loss at 50 % of the run");
  assert.equal(quantity("loss@end"), "loss at the end");
  assert.equal(quantity("user@host"), "user@host");
});

test("texts are listed by name, the newest first, and other values as JSON", () => {
  const event = (step: number, values: unknown): RunEvent => ({
    time: step,
    kind: "log",
    rank: 0,
    attempt: 0,
    step,
    text: "",
    data: { values },
  });
  const found = textsOf([event(1, { note: "warm" }), event(2, { note: "hot", more: { a: 1 } }), event(3, "broken")]);
  assert.deepEqual([...found.keys()], ["more", "note"]);
  assert.deepEqual(
    found.get("note")?.map((one) => one.text),
    ["hot", "warm"],
  );
  assert.equal(found.get("more")?.[0]?.text, '{"a":1}');
});

test("an empty column is hidden, but not while a run is loading", () => {
  const row = (card: Partial<RunRow["card"]> | null): RunRow => ({ state: "finished", card }) as unknown as RunRow;
  const bare = { rate: 1, loss: null, gpu: null, cost: null, alert: null };
  assert.deepEqual(emptyColumns([row(bare), row(bare)]), ["loss", "spark", "gpu", "cost", "alert"]);
  assert.deepEqual(emptyColumns([row(bare), row({ ...bare, gpu: 0.5 })]), ["loss", "spark", "cost", "alert"]);
  assert.deepEqual(emptyColumns([row(bare), row(null)]), []);
});

test("an alert that fires at the end of its run is shown as such", () => {
  assert.equal(stateWord(alert({ state: "firing" }), true), "firing");
  assert.equal(stateWord(alert({ state: "firing" }), false), "at the end");
  assert.equal(stateWord(alert({ state: "resolved" }), false), "resolved");
});

test("only web addresses without a password are links", () => {
  assert.equal(webLink("https://ml.example/run/1"), "https://ml.example/run/1");
  assert.equal(webLink("http://localhost:5000/#/x"), "http://localhost:5000/#/x");
  for (const text of ["", "ml.example", "javascript:alert(1)", " JavaScript:alert(1)", "data:text/html,x", "//evil"]) {
    assert.equal(webLink(text), null, text);
  }
  assert.equal(webLink("https://user:word@ml.example/"), null);
});

test("how far a sink is behind", () => {
  const text = (state: string, rows: number, seconds: number) =>
    behind({ state, behind_rows: rows, behind_seconds: seconds }).replaceAll("\u202f", " ");
  assert.equal(text("keeping up", 0, 0), "nothing");
  assert.equal(text("keeping up", 1, 2.5), "1 row, 2.5 s");
  assert.equal(text("catching up", 1234, 303), "1 234 rows, 5 min 3 s");
  assert.equal(text("stopped", 0, 0), "unknown");
  assert.equal(text("stopped", 7, 60), "7 rows, 1 min");
});
