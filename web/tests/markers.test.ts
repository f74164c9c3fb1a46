import assert from "node:assert/strict";
import { test } from "node:test";

import type { Columns } from "../src/binary.ts";
import { CurveBuffer } from "../src/curve_buffer.ts";
import { epochMarkers, markersOf } from "../src/markers.ts";

function epochs(values: number[], attempt = 0): CurveBuffer {
  const own = Float64Array.from(values);
  const place = Float64Array.from(values, (_, at) => at * 10);
  const columns: Columns = {
    step: place,
    time: place,
    mean: own,
    min: own,
    max: own,
    last: own,
    minStep: place,
    maxStep: place,
    count: own,
    bad: own,
  };
  return new CurveBuffer({ run: "r", name: "epoch", rank: 0, attempt, points: values.length, seq: 0 }, columns);
}

test("an epoch is marked at its start", () => {
  const found = epochMarkers([epochs([0, 0.5, 1, 1.5, 2.1])]);
  assert.deepEqual(
    found.map((mark) => [mark.step, mark.text]),
    [
      [20, "epoch 1"],
      [40, "epoch 2"],
    ],
  );
  assert.deepEqual(epochMarkers([]), []);
});

test("every attempt has its epochs", () => {
  const found = epochMarkers([epochs([0, 1]), epochs([1, 1, 2], 1)]);
  assert.deepEqual(
    found.map((mark) => mark.text),
    ["epoch 1", "epoch 2"],
  );
});

test("many epochs are marked in round steps, at most thirty", () => {
  const found = epochMarkers([epochs(Array.from({ length: 500 }, (_, at) => at))]);
  assert.ok(found.length <= 30 && found.length > 10);
  assert.equal(found[0]?.text, "epoch 20");
});

test("an alert is marked where it fires, and other kinds are left out", () => {
  const event = { time: 1, kind: "alert", rank: 0, attempt: 0, step: 5, text: "hot", data: { state: "firing" } };
  const found = markersOf([event, { ...event, data: { state: "resolved" } }, { ...event, kind: "definitions" }]);
  assert.deepEqual(found, [{ step: 5, time: 1, text: "hot", kind: "alert" }]);
});
