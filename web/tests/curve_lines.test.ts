import assert from "node:assert/strict";
import { test } from "node:test";

import type { Columns } from "../src/binary.ts";
import { ChartLink } from "../src/chart_link.ts";
import { CurveBuffer } from "../src/curve_buffer.ts";
import { acrossOf } from "../src/curve_lines.ts";
import { Curves } from "../src/curves.ts";

function held(run: string, step: number[], time: number[]): CurveBuffer {
  const [steps, times] = [Float64Array.from(step), Float64Array.from(time)];
  const columns: Columns = {
    step: steps,
    time: times,
    mean: times,
    min: times,
    max: times,
    last: times,
    minStep: steps,
    maxStep: steps,
    count: times,
    bad: times,
  };
  return new CurveBuffer({ run, name: "loss", rank: 0, attempt: 0, points: step.length, seq: 0 }, columns);
}

test("by elapsed time each run starts at 0, by clock time at its start", () => {
  const curves = new Curves(["a", "b"]);
  curves.starts = new Map([
    ["a", 1000],
    ["b", 5000],
  ]);
  const [one, other] = [held("a", [0, 1], [1001, 1002]), held("b", [0, 1], [5001, 5004])];
  const elapsed = acrossOf(curves, "time");
  assert.deepEqual(
    [[...elapsed(one)], [...elapsed(other)]],
    [
      [1, 2],
      [1, 4],
    ],
  );
  assert.deepEqual([...acrossOf(curves, "wall")(other)], [5001, 5004]);
  assert.deepEqual([...acrossOf(curves, "step")(other)], [0, 1]);
});

test("a zoom by elapsed time requests a different period of each run", async () => {
  const asked: Record<string, unknown>[] = [];
  Object.assign(globalThis, { window: globalThis });
  const curves = new Curves(["a", "b"], null, 64, (_, query) => {
    asked.push(query as Record<string, unknown>);
    return Promise.resolve([]);
  });
  curves.starts = new Map([
    ["a", 1000],
    ["b", 5000],
  ]);
  curves.watch("loss", 100, () => undefined);
  curves.setRange("time", [10, 30]);
  while (asked.length < 3) await new Promise((done) => setTimeout(done, 1));
  assert.deepEqual(
    asked.map((query) => [query.run, query.from, query.to]),
    [
      [["a", "b"], undefined, undefined],
      [["a"], 1009, 1031],
      [["b"], 5009, 5031],
    ],
  );
  curves.stop();
});

test("a zoom keeps its times if the second attempt went back", () => {
  const link = new ChartLink();
  link.unit = "time";
  link.convert = (x) => ({ 1090: 90, 1210: 70 })[x] ?? null;
  link.setRange([1090, 1210]);
  link.setUnit("step");
  assert.deepEqual(link.range, [70, 90]);
});
