import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { ABSENT, age, ago, amount, change, count, duration, share, short, ticks, value } from "../src/format.ts";

interface Case {
  kind: string;
  value: number | string | null;
  unit: string;
  expected: string;
}

const CASES = JSON.parse(readFileSync("../tests/golden/numbers.json", "utf8")) as Case[];
const WORDS: Record<string, number> = { NaN: Number.NaN, inf: Infinity, "-inf": -Infinity };
const plain = (text: string): string => text.replace(/\u202f/g, " ");

/** Format a case of the table that `stepscope/core/numbers.py` passes as well. */
function formatted({ kind, unit, value: given }: Case): string {
  const input = typeof given === "string" ? (WORDS[given] ?? Number(given)) : given;
  const kinds: Record<string, () => string> = {
    value: () => value(input, unit),
    short: () => short(input, unit),
    change: () => change(input),
    share: () => share(input),
    count: () => count(input),
    money: () => amount(input),
    age: () => age(input ?? 0),
  };
  return plain(kinds[kind]?.() ?? `no formatter for ${kind}`);
}

test("numbers read on the page as they do everywhere else", () => {
  assert.ok(CASES.length > 100);
  const wrong = CASES.map((one) => ({ ...one, got: formatted(one) })).filter((one) => one.got !== one.expected);
  assert.deepEqual(wrong, []);
});

test("a missing number is never 0", () => {
  assert.equal(value(undefined, "bytes"), ABSENT);
  assert.equal(duration(undefined), ABSENT);
  assert.equal(count(undefined), ABSENT);
});

test("an age is part of a sentence", () => {
  assert.equal(ago(0.4), "now");
  assert.equal(plain(ago(12)), "12 s ago");
});

test("the labels of an axis differ from each other", () => {
  assert.deepEqual(ticks([0, 0.25, 0.5, 0.75, 1]), ["0", "0.25", "0.50", "0.75", "1.00"]);
  assert.deepEqual(ticks([0, 50000, 100000]), ["0", "50k", "100k"]);
  assert.deepEqual(ticks([0, 5000, 10000]), ["0", "5k", "10k"]);
  assert.deepEqual(ticks([123456.2, 123456.4, 123456.6]), ["123.4562k", "123.4564k", "123.4566k"]);
  assert.deepEqual(ticks([0, 0.1, 0.2], "seconds").map(plain), ["0 ms", "100 ms", "200 ms"]);
  assert.deepEqual(ticks([0, 2 ** 30], "bytes").map(plain), ["0 GiB", "1 GiB"]);
  assert.deepEqual(ticks([0, 1e9, 2e9], "hertz").map(plain), ["0 GHz", "1 GHz", "2 GHz"]);
  assert.deepEqual(ticks([20, 40], "celsius").map(plain), ["20 °C", "40 °C"]);
  assert.deepEqual(ticks([0.001, 0.1, 10, 1000], "", true), ["0.001", "0.1", "10", "1000"]);
});

test("the labels of an axis beyond all prefixes are powers of ten", () => {
  assert.deepEqual(ticks([0, 2e19, 4e19]), ["0", "2e19", "4e19"]);
  assert.deepEqual(ticks([1, 1e11, 1e22], "", true), ["1", "1e11", "1e22"]);
});
