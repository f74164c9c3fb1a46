import assert from "node:assert/strict";
import { test } from "node:test";

import { linearTicks, logTicks, multiples, padded, paddedLog, type Reach, sharer } from "../src/axis.ts";
import { extent, type Line } from "../src/chart_line.ts";

const ODD = [
  0,
  5e-324,
  1e-310,
  1e-45,
  1e-17,
  0.097,
  0.1,
  1,
  1 + 2 ** -52,
  3.05,
  999.9,
  1e5,
  1e16,
  1e17,
  1e23,
  3e38,
  1e300,
  1.7e308,
];
const MOST = 5;

function line(values: number[]): Line {
  const column = Float64Array.from(values);
  return {
    key: "",
    label: "",
    colour: 0,
    x: Float64Array.from(values, (_, place) => place),
    mean: column,
    min: column,
    max: column,
    last: column,
    count: column.map(() => 1),
  };
}

function fine(found: number[], reach: Reach, log: boolean, what: string): void {
  const share = sharer(reach, log);
  assert.ok(reach[0] < reach[1] && Number.isFinite(reach[1] - reach[0]), `${what}: reach ${reach}`);
  assert.ok(found.length <= MOST + 1, `${what}: ${found.length} ticks`);
  assert.ok(
    found.every(
      (at, place) =>
        Number.isFinite(share(at)) &&
        at >= reach[0] &&
        at <= reach[1] &&
        (place === 0 || at > (found[place - 1] ?? at)),
    ),
    `${what}: ${found}`,
  );
}

test("every pair of values gets a linear and a log axis with few ticks inside it", () => {
  for (const one of [...ODD, ...ODD.map((odd) => -odd)]) {
    for (const other of [...ODD, ...ODD.map((odd) => -odd)]) {
      const [least, most] = [Math.min(one, other), Math.max(one, other)];
      const linear = padded(least, most);
      for (const binary of [false, true]) fine(linearTicks(linear, MOST, binary), linear, false, `${least} to ${most}`);
      if (least <= 0) continue;
      const log = paddedLog(least, most);
      fine(logTicks(log, MOST), log, true, `log of ${least} to ${most}`);
    }
  }
});

test("the usual axis has at least two ticks, and they are round", () => {
  assert.deepEqual(linearTicks([0, 1.06], MOST), [0, 0.5, 1]);
  assert.deepEqual(linearTicks([2.11, 2.94], MOST), [2.2, 2.4, 2.6, 2.8]);
  assert.deepEqual(linearTicks([0, 5.2 * 2 ** 30], MOST, true), [0, 2 ** 31, 2 ** 32]);
  assert.deepEqual(logTicks([0.097, 3.05], MOST), [0.1, 0.2, 0.5, 1, 2]);
  assert.deepEqual(logTicks([1e-9, 1e9], MOST), [1e-8, 1e-4, 1, 1e4, 1e8]);
  assert.deepEqual(logTicks([0.21, 0.6], MOST), [0.3, 0.4, 0.5, 0.6]);
  assert.deepEqual(logTicks([0.0012, 0.055], MOST), [0.002, 0.005, 0.01, 0.02, 0.05]);
  assert.deepEqual(logTicks([40 * 2 ** 20, 90 * 2 ** 20], MOST, true), [48 * 2 ** 20, 64 * 2 ** 20, 80 * 2 ** 20]);
});

test("an axis of steps or times has few ticks however small or large its range", () => {
  for (const [low, high] of [
    [0, 999],
    [5e16, 5e16 + 16],
    [9.2e18, 9.3e18],
    [1.7e9, 1.7e9 + 1e-3],
    [-5, 5],
  ] as const) {
    for (const increment of [1e-3, 1, 5e15]) assert.ok(multiples([low, high], increment).length <= 100);
  }
  assert.deepEqual(multiples([470, 490], 5), [470, 475, 480, 485, 490]);
});

test("clipping on a log axis goes by orders of magnitude and stays above 0", () => {
  const falling = Array.from({ length: 200 }, (_, place) => 3 * 10 ** (-place / 60));
  const found = extent([line([...falling, 1e-40, 1e30])], 0, 300, true, true);
  assert.ok(found && found.min > 1e-12 && found.max < 1e12 && found.min < 3e-3);
  assert.deepEqual([found?.above, found?.below], [1, 1]);
});

test("a bucket whose mean is below 0 does not turn a clipped log axis around", () => {
  const values = Array.from({ length: 60 }, (_, place) => 1 + (place % 5));
  const mixed: Line = {
    ...line(values),
    mean: Float64Array.from(values, () => -3),
    min: Float64Array.from(values, () => -9),
  };
  const found = extent([mixed], 0, 100, true, true);
  assert.ok(found && found.min > 0 && found.max >= found.min);
});
