import assert from "node:assert/strict";
import { test } from "node:test";

import type { Columns } from "../src/binary.ts";
import { CurveBuffer } from "../src/curve_buffer.ts";

function columns(values: number[], counts = values.map(() => 1)): Columns {
  const own = (make: (value: number, place: number) => number): Float64Array => Float64Array.from(values, make);
  return {
    step: own((_, place) => place),
    time: own((_, place) => place),
    mean: own((value) => value),
    min: own((value) => value),
    max: own((value) => value),
    last: own((value) => value),
    minStep: own((_, place) => place),
    maxStep: own((_, place) => place),
    count: Float64Array.from(counts),
    bad: own((value) => (Number.isNaN(value) ? 1 : 0)),
  };
}

const head = { run: "r", name: "loss", rank: 0, attempt: 0, seq: 10 };

test("a duplicate row is not added", () => {
  const held = new CurveBuffer({ ...head, points: 2 }, columns([1, 2]));
  assert.equal(held.append(columns([9]), 0, 10), false);
  assert.equal(held.append(columns([9]), 0, 11), true);
  assert.deepEqual([...held.columns().mean], [1, 2, 9]);
});

test("thinning keeps every extreme, every point and every non-finite value", () => {
  const values = Array.from({ length: 1000 }, (_, place) =>
    place === 137 ? 1e6 : place === 500 ? NaN : Math.sin(place),
  );
  const held = new CurveBuffer({ ...head, points: 1000 }, columns(values));
  held.thin(100);
  const found = held.columns();
  assert.ok(found.step.length <= 100);
  assert.equal(Math.max(...found.max), 1e6);
  assert.equal(found.maxStep[found.max.indexOf(1e6)], 137);
  assert.equal(
    found.count.reduce((sum, many) => sum + many, 0),
    1000,
  );
  assert.equal(
    found.bad.reduce((sum, many) => sum + many, 0),
    1,
  );
  assert.equal(found.last[found.last.length - 1], values[999]);
});

test("new rows fill up buckets as large as the fetched ones", () => {
  const held = new CurveBuffer({ ...head, points: 40 }, columns([1, 2, 3, 4], [10, 10, 10, 10]));
  for (let place = 0; place < 20; place += 1) held.append(columns([place]), 0, 11 + place);
  assert.equal(held.length, 6);
  assert.equal(held.points, 60);
  assert.deepEqual([...held.columns().count.slice(4)], [10, 10]);
  assert.equal(held.columns().max[5], 19);
  assert.equal(held.columns().mean[4], 4.5);
});

test("a live curve has bounded memory and keeps every extreme", () => {
  const held = new CurveBuffer({ ...head, points: 2 }, columns([1, 2]));
  for (let place = 0; place < 5000; place += 1) {
    held.append(columns([place === 77 ? 1e6 : Math.sin(place)]), 0, 11 + place, 90);
    assert.ok(held.length <= 90);
  }
  assert.equal(held.columns().step.buffer.byteLength, 91 * 8);
  assert.equal(held.points, 5002);
  assert.equal(Math.max(...held.columns().max), 1e6);
  assert.equal(
    held.columns().count.reduce((sum, many) => sum + many, 0),
    5002,
  );
});
