import assert from "node:assert/strict";
import { test } from "node:test";

import { RunClock } from "../src/run_clock.ts";

/** Two attempts: steps 0 to 100 in 1000 s to 1100 s; then from step 60, in 1200 s to 1300 s. */
const clock = new RunClock([
  { step: Float64Array.of(60, 160), time: Float64Array.of(1200, 1300) },
  { step: Float64Array.of(0, 100), time: Float64Array.of(1000, 1100) },
]);

test("a time has the step of the attempt that contains it", () => {
  assert.deepEqual(
    [1000, 1050, 1200, 1250].map((time) => clock.stepAt(time)),
    [0, 50, 60, 110],
  );
  assert.equal(clock.stepAt(1150), 100); // between the two
  assert.deepEqual([clock.stepAt(900), clock.stepAt(2000)], [0, 160]);
});

test("a step has the time of the last attempt that reached it", () => {
  assert.deepEqual(
    [20, 80, 160].map((step) => clock.timeAt(step)),
    [1020, 1220, 1300],
  );
  assert.deepEqual([clock.timeAt(-5), clock.timeAt(999)], [1000, 1300]);
});

test("without steps there is no conversion", () => {
  assert.equal(new RunClock([]).stepAt(5), null);
  assert.equal(new RunClock([{ step: new Float64Array(0), time: new Float64Array(0) }]).timeAt(5), null);
});
