import assert from "node:assert/strict";
import { test } from "node:test";

import { padded } from "../src/axis.ts";
import { extent, fold, type Line, nearest, placeOf, smooth, valueAt } from "../src/chart_line.ts";

function line(values: number[], counts?: number[]): Line {
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
    count: Float64Array.from(counts ?? values.map(() => 1)),
  };
}

test("the index of an x is found, also at both ends", () => {
  const x = Float64Array.of(1, 2, 4);
  assert.deepEqual(
    [0, 1, 3, 4, 9].map((at) => placeOf(x, at)),
    [-1, 0, 1, 2, 2],
  );
  assert.deepEqual(
    [0, 1.4, 3.1, 9].map((at) => nearest(x, at)),
    [0, 0, 2, 2],
  );
  assert.equal(nearest(new Float64Array(0), 3), -1);
});

test("smoothing is the same whether points come alone or in buckets", () => {
  const single = smooth(line([1, 1, 5, 5]), 10);
  const buckets = smooth(line([1, 5], [2, 2]), 10);
  assert.ok(Math.abs((single[1] ?? 0) - (buckets[0] ?? 9)) < 1e-12);
  assert.ok(Math.abs((single[3] ?? 0) - (buckets[1] ?? 9)) < 1e-12);
});

test("smoothing starts at the first value and skips values that are not finite", () => {
  const smoothed = smooth(line([3, NaN, 3]), 100);
  assert.equal(smoothed[0], 3);
  assert.ok(Math.abs((smoothed[2] ?? 0) - 3) < 1e-12);
  assert.ok(Number.isNaN(smoothed[1] ?? 0));
  assert.ok(Number.isNaN(smooth(line([NaN]), 5)[0]));
});

test("the range of values includes every extreme, and clipping reports what it leaves out", () => {
  const spiky = line([...Array.from({ length: 100 }, (_, place) => 1 + (place % 7) / 100), 1000]);
  assert.equal(extent([spiky], 0, 100, false, false)?.max, 1000);
  const clipped = extent([spiky], 0, 100, true, false);
  assert.ok((clipped?.max ?? 1000) < 2);
  assert.equal(clipped?.above, 1);
  assert.equal(clipped?.most, 1000);
});

test("a falling loss is no outlier", () => {
  const loss = line(Array.from({ length: 500 }, (_, place) => 10 * Math.exp(-place / 150) + 2));
  const clipped = extent([loss], 0, 499, true, false);
  assert.deepEqual([clipped?.above, clipped?.below], [0, 0]);
});

test("a log axis only includes values above 0", () => {
  assert.equal(extent([line([-1, 0])], 0, 1, false, true), null);
  assert.equal(extent([line([-1, 4])], 0, 1, false, true)?.min, 4);
});

test("an axis has a margin, and includes 0 if it is near", () => {
  assert.equal(padded(0.1, 1)[0], 0);
  assert.ok(padded(100, 101)[0] > 99);
  assert.deepEqual(padded(0, 0), [0, 1]);
});

test("ranks fold into a band with every value, and the outlying rank is named", () => {
  const [one, two, odd] = [line([1, 2, 3]), line([1, 2, 3]), { ...line([5, 6, 7]), label: "rank 2" }];
  const folded = fold([one, two, odd]);
  assert.deepEqual([...(folded?.band.min ?? [])], [1, 2, 3]);
  assert.deepEqual([...(folded?.band.max ?? [])], [5, 6, 7]);
  assert.equal(folded?.farthest?.label, "rank 2");
  assert.equal(fold([one, two])?.farthest, null);
  assert.equal(fold([]), null);
});

test("a diverged run does not flatten the others, and the chart reports what it leaves out", () => {
  const healthy = {
    ...line(Array.from({ length: 300 }, (_, place) => 8 * Math.exp(-place / 60) + 2)),
    group: "healthy",
  };
  const diverged = {
    ...line(
      Array.from(
        { length: 300 },
        (_, place) => 8 * Math.exp(-place / 60) + 2 + (place > 200 ? 10 ** (place - 200) : 0),
      ),
    ),
    group: "diverged",
  };
  const found = extent([healthy, diverged], 0, 299, true, false);
  assert.ok(found && found.max < 20 && found.above > 50 && found.most > 1e90);
  assert.ok((extent([healthy, diverged], 0, 299, true, true)?.max ?? Infinity) < 100);
  assert.equal(extent([healthy, diverged], 0, 299, false, false)?.max, found?.most);
});

test("a run that learns is not clipped because another run does not", () => {
  const learns = { ...line(Array.from({ length: 100 }, (_, place) => 0.1 + 0.85 * (place / 100))), group: "a" };
  const stuck = { ...line(Array.from({ length: 100 }, (_, place) => 0.1 + 0.001 * (place % 2))), group: "b" };
  assert.deepEqual([extent([learns, stuck], 0, 99, true, false)?.above], [0]);
});

test("buckets of noise have no outliers", () => {
  const wave = Array.from({ length: 200 }, (_, place) => Math.sin(place * 12.9898) * 0.3);
  const noise: Line = {
    ...line(wave),
    min: Float64Array.from(wave, (at) => at - 1.4),
    max: Float64Array.from(wave, (at) => at + 1.4),
  };
  const found = extent([noise], 0, 199, true, false);
  assert.deepEqual([found?.above, found?.below], [0, 0]);
});

const values = Float64Array.of(3, 2, 1);
const three: Line = {
  key: "",
  label: "",
  colour: 0,
  x: Float64Array.of(10, 20, 30),
  mean: values,
  min: values,
  max: values,
  last: values,
  count: Float64Array.of(1, 1, 1),
};

test("a chart shows the value under the cursor, else the last visible value", () => {
  assert.equal(valueAt(three, 11, Infinity), 3);
  assert.equal(valueAt(three, null, Infinity), 1);
  assert.equal(valueAt(three, null, 25), 2);
  assert.equal(valueAt({ ...three, x: new Float64Array(0), last: new Float64Array(0) }, null, 25), null);
});
