import assert from "node:assert/strict";
import { test } from "node:test";

import { curvesOf, decode, frameOf } from "../src/binary.ts";

function message(header: unknown, doubles: number[], ints: number[] = []): Uint8Array {
  let text = JSON.stringify(header);
  while ((8 + text.length) % 8) text += " ";
  const size = 8 + text.length + 8 * doubles.length + ((4 * ints.length + 7) & ~7);
  const bytes = new Uint8Array(size);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode("SSB1"));
  view.setUint32(4, text.length, true);
  bytes.set(new TextEncoder().encode(text), 8);
  const start = 8 + text.length;
  for (const [place, one] of doubles.entries()) view.setFloat64(start + 8 * place, one, true);
  for (const [place, one] of ints.entries()) view.setUint32(start + 8 * doubles.length + 4 * place, one, true);
  return bytes;
}

test("raw points and buckets are read from one message", () => {
  const curves = [
    { run: "r", name: "a", rank: 0, attempt: 0, kind: "points", n: 2, at: 0, points: 2, seq: 5 },
    { run: "r", name: "b", rank: 1, attempt: 0, kind: "buckets", n: 1, at: 48, points: 7, seq: 9 },
  ];
  const bytes = message({ curves }, [1, 2, 10, 20, 0.5, NaN, 3, 30, 1, -1, 4, 2, 1, 2], [7, 1]);
  const found = decode(bytes.buffer as ArrayBuffer).flatMap(curvesOf);
  assert.deepEqual(
    found.map((one) => one.head.name),
    ["a", "b"],
  );
  assert.deepEqual([...(found[0]?.columns.bad ?? [])], [0, 1]);
  assert.ok(Number.isNaN(found[0]?.columns.mean[1] ?? 0));
  assert.equal(found[1]?.columns.max[0], 4);
  assert.deepEqual([found[1]?.columns.count[0], found[1]?.columns.bad[0]], [7, 1]);
});

test("several live frames are read, also with an odd number of rows", () => {
  const row = (value: number): number[] => [1, 2, value, value, value, value, 1, 1, 77];
  const status = { state: "running" };
  const first = message({ frame: 1, cursor: 4, new: [[0, "loss", 0, 0]], n: 1, status }, row(0.5), [0, 1, 0]);
  const second = message({ frame: 2, cursor: 5, new: [], n: 1, status }, row(0.25), [0, 1, 0]);
  const all = new Uint8Array(first.length + second.length);
  all.set(first);
  all.set(second, first.length);
  const frames = decode(all.buffer).map(frameOf);
  assert.deepEqual(
    frames.map((frame) => frame.header.cursor),
    [4, 5],
  );
  assert.deepEqual(
    frames.map((frame) => frame.columns.mean[0]),
    [0.5, 0.25],
  );
  assert.equal(frames[1]?.seq[0], 77);
});

test("unknown and incomplete messages are refused", () => {
  assert.throws(() => decode(new TextEncoder().encode("<!doctype html>....").buffer as ArrayBuffer), /unknown message/);
  const bytes = message({ curves: [] }, []);
  new DataView(bytes.buffer).setUint32(4, 1e9, true);
  assert.throws(() => decode(bytes.buffer as ArrayBuffer), /incomplete/);
});
